"""What every client's script does: steps that succeed or fail, one JSON line each. Argument: the server's URL.

Models here are small: answers are held to a form where a step needs one, so that a failure is the server's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
BASE = f"{URL}/v1"
KEY, MODEL = "compat-key", "demo"
TOKENIZER = Path(__file__).resolve().parents[3] / "worker/demo_model"  # for clients that count tokens themselves
QUESTION = "What is the weather in Rome?"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
_MAX_SHOWN = 300


def version(package: str) -> None:
    print(json.dumps({"package": package, "version": metadata.version(package)}), flush=True)


def step(name: str) -> Callable[[Callable[[], Any]], None]:
    """A decorator that runs the function: what it returns has to be true."""

    def run(function: Callable[[], Any]) -> None:
        try:
            found = function()
            problem = None if found else f"the answer is {found!r}"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        print(json.dumps({"step": name, "problem": problem and " ".join(problem.split())[:_MAX_SHOWN]}), flush=True)

    return run

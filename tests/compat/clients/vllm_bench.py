"""`vllm bench serve`: its command, by each of its clients for text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from steps import KEY, MODEL, TOKENIZER, URL, step, version

version("vllm")
NUM_PROMPTS, INPUT_TOKENS, OUTPUT_TOKENS = 12, 48, 24
TEXT = {"random-input-len": INPUT_TOKENS, "random-output-len": OUTPUT_TOKENS}


def measured(backend: str, endpoint: str, *flags: str, **options: Any) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        all_options = {
            "backend": backend,
            "endpoint": endpoint,
            "base-url": URL,
            "model": MODEL,
            "tokenizer": TOKENIZER,
            "dataset-name": "random",
            "num-prompts": NUM_PROMPTS,
            "max-concurrency": 4,
            "seed": 1,
            "result-dir": folder,
            "result-filename": "result.json",
            **TEXT,
            **options,
        }
        command = [str(Path(sys.executable).parent / "vllm"), "bench", "serve", "--save-result", "--disable-tqdm"]
        for name, value in all_options.items():
            command += [f"--{name}", str(value)]
        variables = os.environ | {"OPENAI_API_KEY": KEY}
        done = subprocess.run([*command, *flags], env=variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-300:]
        return json.loads((Path(folder) / "result.json").read_text())


def is_sound(found: Any) -> bool:
    assert (found["completed"], found["failed"]) == (NUM_PROMPTS, 0), found
    assert found["total_output_tokens"] == NUM_PROMPTS * OUTPUT_TOKENS, found["total_output_tokens"]
    return bool(found["mean_ttft_ms"] > 0 and found["mean_tpot_ms"] > 0)


@step("completions")
def _() -> Any:
    return is_sound(measured("openai", "/v1/completions", "--ignore-eos"))


@step("chat")
def _() -> Any:
    return is_sound(measured("openai-chat", "/v1/chat/completions", "--ignore-eos"))


@step("responses")
def _() -> Any:
    found = measured("openai-responses", "/v1/responses")
    assert (found["completed"], found["failed"]) == (NUM_PROMPTS, 0), found
    return found["total_output_tokens"] > 0


@step("embeddings")
def _() -> Any:
    return measured("openai-embeddings", "/v1/embeddings")["completed"] == NUM_PROMPTS

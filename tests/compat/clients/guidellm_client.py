"""guidellm: its command, which makes texts with the model's tokenizer and measures streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from steps import KEY, MODEL, TOKENIZER, URL, step, version

version("guidellm")
NUM_REQUESTS, PROMPT_TOKENS, OUTPUT_TOKENS = 8, 24, 16


def measured(route: str) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = {
            "backend": f"kind=openai_http,target={URL},model={MODEL},request_format={route},api_key={KEY}",
            "profile": "kind=concurrent,streams=[2]",
            "constraint": f"kind=max_requests,count={NUM_REQUESTS}",
            "tokenizer": f"kind=hf_auto,model={TOKENIZER}",
            "data": f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={OUTPUT_TOKENS}",
            "output": f"kind=json,path={report}",
        }
        command = [str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console"]
        for name, value in options.items():
            command += [f"--{name}", value]
        done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-300:]
        return json.loads(report.read_text())["benchmarks"][0]["metrics"]


def is_sound(metrics: Any) -> bool:
    totals = metrics["request_totals"]
    assert (totals["successful"], totals["errored"]) == (NUM_REQUESTS, 0), totals
    output = metrics["output_token_count"]["successful"]
    assert output["mean"] == OUTPUT_TOKENS, output
    first = metrics["time_to_first_token_ms"]["successful"]
    return bool(first["count"] == NUM_REQUESTS and first["min"] > 0)


@step("chats, streamed")
def _() -> Any:
    return is_sound(measured("/v1/chat/completions"))


@step("completions, streamed")
def _() -> Any:
    return is_sound(measured("/v1/completions"))


@step("responses, streamed")
def _() -> Any:
    return is_sound(measured("/v1/responses"))

"""What the largest bodies do to everybody else: the worst wait of /health and the gateway's memory, body by body.

    .venv/bin/python -m bench.run.gateway.largest_bodies [--mib 16]

Starts a server with the demo model. Nothing may delay /health by more than 100 ms or take more than 300 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp
import psutil

MESSAGE = '{"role":"user","content":""}'
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
JSON = {"Content-Type": "application/json"}


def many(item: str, size: int) -> str:
    return ",".join([item] * (size // (len(item) + 1)))


def prompt(text: str) -> Callable[[int], str]:
    return lambda n: json.dumps({"prompt": text * (n // len(json.dumps(text)[1:-1]))})


BODIES: dict[str, tuple[str, Callable[[int], str]]] = {
    "token ids to text": ("/detokenize", lambda n: '{"tokens":[' + many("1", n) + "]}"),
    "262,144 token ids to text": ("/detokenize", lambda n: json.dumps({"tokens": [1] * 2**18})),
    "empty messages": (CHAT, lambda n: '{"messages":[' + many(MESSAGE, n) + "]}"),
    "8192 messages": (CHAT, lambda n: '{"messages":[' + ",".join([MESSAGE] * 8192) + "]}"),
    "a long chat": (CHAT, lambda n: json.dumps({"messages": [{"role": "user", "content": "ab1 " * (n // 4)}]})),
    "template variables": (
        CHAT,
        lambda n: f'{{"messages":[{MESSAGE}],"chat_template_kwargs":{{' + many('"1":1', n) + "}}",
    ),
    "a wrong value": (CHAT, lambda n: f'{{"messages":[{MESSAGE}],"service_tier":"{" - at `" * (n // 7)}"}}'),
    "token ids": (COMPLETIONS, lambda n: '{"prompt":[' + many("1", n) + "]}"),
    "words": (COMPLETIONS, prompt("ab1 ")),
    "one letter": (COMPLETIONS, prompt("x")),
    "Chinese": (COMPLETIONS, prompt("首")),
    "1024 prompts": (COMPLETIONS, lambda n: json.dumps({"prompt": ["ab " * (n // 5000)] * 1024, "max_tokens": 1})),
    "words to tokenize": ("/tokenize", prompt("ab1 ")),
    "512 Ki characters to tokenize, strings": (
        "/tokenize",
        lambda n: json.dumps({"prompt": "ab1 " * 2**16, "return_token_strs": True}),
    ),
    "what nobody knows": (COMPLETIONS, lambda n: '{"prompt":"a","x":[' + many("{}", n) + "]}"),
    "log-probabilities": (CHAT, lambda n: json.dumps(logprobs())),
}


def logprobs() -> dict[str, object]:
    message = {"role": "user", "content": "Hello"}
    return {
        "messages": [message], "n": 64, "max_tokens": 190, "ignore_eos": True, "logprobs": True, "top_logprobs": 20
    }  # fmt: skip


async def measure(session: aiohttp.ClientSession, gateway: psutil.Process, path: str, body: bytes) -> list[str]:
    before = peak = gateway.memory_info().rss
    worst, done = 0.0, asyncio.Event()

    async def watch() -> None:
        nonlocal worst, peak
        while not done.is_set():
            start = time.perf_counter()
            async with session.get("/health") as response:
                await response.read()
            worst = max(worst, time.perf_counter() - start)
            peak = max(peak, gateway.memory_info().rss)
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    async with session.post(path, data=io.BytesIO(body), headers=JSON) as response:
        status = response.status
        await response.read()
    done.set()
    await watching
    after = gateway.memory_info().rss
    memory = [f"{size / 1e6:.0f}" for size in (before, peak, after)]
    return [path, f"{len(body) / 2**20:.1f}", str(status), f"{worst * 1e3:.0f}", *memory]


async def run(url: str, pid: int, num_bytes: int) -> None:
    print("| body | route | MiB | status | worst /health, ms | before, MB | peak | after |")
    print("|---|---|---|---|---|---|---|---|")
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(url, timeout=timeout) as session:
        for name, (path, make) in BODIES.items():
            row = await measure(session, psutil.Process(pid), path, make(num_bytes - 4096).encode())
            print(f"| {' | '.join([name, *row])} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=float, default=15.9, help="size of the bodies (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        program = [
            sys.executable,
            "-m",
            "gateway.cli.main",
            "serve",
            "demo",
            "--port",
            "0",
            "--data-dir",
            folder + "/d",
        ]
        with log.open("wb") as stderr:
            process = subprocess.Popen(program, stderr=stderr)
        try:
            while (found := re.search(r"browser: (http://\S+?)/ ", log.read_text())) is None:
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            asyncio.run(run(found[1], process.pid, int(args.mib * 2**20)))
        finally:
            process.terminate()
            process.wait(30)
    return 0


if __name__ == "__main__":
    sys.exit(main())

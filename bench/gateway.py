"""What the gateway costs per streamed token: its CPU time over an engine that computes nothing.

    python bench/gateway.py [--streams 64] [--tokens 512] [--step-ms 5]

`hocket serve` runs with a fake worker that gives every stream one token per step. CPU time is user and system time of
the gateway's process between the first and the last byte, requests and socket calls included. A busy machine inflates
it: sending wakes the client, and caches are shared. A short step offers more than one core takes; then steps coalesce
and tokens get cheaper.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import uvloop
from http_stream import HttpStream

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.byte_tokenizer import write_byte_checkpoint  # noqa: E402 (a folder, no package)

READY = re.compile(r"chat in a browser: (http://\S+:\d+)/")


@contextmanager
def serving(step_ms: int) -> Iterator[tuple[str, psutil.Process]]:
    """The server's URL and the gateway's process."""
    variables = os.environ | {
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        "FAKE_WORKER_STEP_MS": str(step_ms),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_checkpoint(Path(folder) / "bytes")
        command = [sys.executable, "-m", "fakes.fake_serve", str(model), "--port", "0", "--no-access-log"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables, cwd=ROOT)
        try:
            assert process.stderr is not None
            url = next(match[1] for line in process.stderr if (match := READY.search(line)))
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            process.communicate()


async def stream_all(url: str, num_streams: int, num_tokens: int) -> int:
    """Pieces received, over all streams."""
    fields = {"prompt": "Hello world", "stream": True, "max_tokens": num_tokens, "ignore_eos": True}
    body = json.dumps(fields).encode()
    num_pieces = 0

    def count(now: float, piece: bytes) -> None:
        nonlocal num_pieces
        num_pieces += 1

    async def one() -> None:
        stream = await HttpStream.connect(url)
        status = await stream.request("POST", "/v1/completions", body, count)
        assert status == 200, status
        stream.close()

    await asyncio.gather(*(one() for _ in range(num_streams)))
    return num_pieces


def measure(num_streams: int, num_tokens: int, step_ms: int) -> str:
    with serving(step_ms) as (url, gateway):
        uvloop.run(stream_all(url, num_streams, 16))  # tables fill, code warms up
        before, started = gateway.cpu_times(), time.perf_counter()
        num_writes = uvloop.run(stream_all(url, num_streams, num_tokens))
        after, seconds = gateway.cpu_times(), time.perf_counter() - started
    num = num_streams * num_tokens
    user, system = (after.user - before.user) / num * 1e6, (after.system - before.system) / num * 1e6
    return (
        f"{num_streams} streams, {num / seconds:,.0f} tokens/s, {num / num_writes:.2f} tokens per write: "
        f"{user + system:.1f} us of gateway CPU per token ({user:.1f} user, {system:.1f} system)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=512, help="per stream")
    parser.add_argument("--step-ms", type=int, default=5, help="between two steps of the engine")
    args = parser.parse_args()
    print(measure(args.streams, args.tokens, args.step_ms))


if __name__ == "__main__":
    main()

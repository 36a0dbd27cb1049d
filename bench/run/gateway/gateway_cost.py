"""What the gateway costs per streamed token: its CPU time over an engine that computes nothing.

    python -m bench.run.gateway.gateway_cost [--streams 64 128 256] [--tokens 1000] [--rate 50000]

`hocket serve` runs over null_engine.py, which offers `rate` tokens per second to all streams together. CPU time is user
and system time of the gateway's process alone between the first and the last byte, requests and socket calls included;
the client's, in a process of its own, is printed beside it. A token is one write to one connection unless the gateway
falls behind: then steps coalesce, and tokens per write says so. A busy machine inflates all of it: caches are shared.
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

from bench.lib.load.http_stream import HttpStream

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.byte_tokenizer import write_byte_checkpoint  # noqa: E402 (a folder, no package)

READY = re.compile(r"chat in a browser: (http://\S+:\d+)/")


@contextmanager
def serving(rate: float) -> Iterator[tuple[str, psutil.Process]]:
    """The server's URL and the gateway's process."""
    variables = os.environ | {
        "PYTHONPATH": str(ROOT),
        "NULL_ENGINE_TOKENS_PER_SECOND": str(rate),
    }
    with tempfile.TemporaryDirectory() as folder:
        model = write_byte_checkpoint(Path(folder) / "bytes")
        command = [sys.executable, "-m", "bench.run.gateway.null_engine", str(model), "--port", "0"]
        process = subprocess.Popen([*command, "--no-access-log"], stderr=subprocess.PIPE, text=True, env=variables)
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

    async def one() -> int:
        stream = await HttpStream.connect(url)
        response = await stream.request("POST", "/v1/completions", body)
        assert response.status == 200, response.body()
        stream.close()
        return response.num_pieces

    return sum(await asyncio.gather(*(one() for _ in range(num_streams))))


def measure(url: str, gateway: psutil.Process, num_streams: int, num_tokens: int) -> str:
    uvloop.run(stream_all(url, num_streams, 64))  # tables fill, code warms up
    before, started, client = gateway.cpu_times(), time.perf_counter(), time.process_time()
    num_writes = uvloop.run(stream_all(url, num_streams, num_tokens))
    after, seconds, client = gateway.cpu_times(), time.perf_counter() - started, time.process_time() - client
    num = num_streams * num_tokens
    user, system = (after.user - before.user) / num * 1e6, (after.system - before.system) / num * 1e6
    return (
        f"{num_streams} streams, {num / seconds:,.0f} tokens/s, {num / num_writes:.2f} tokens per write: "
        f"{user + system:.1f} us of gateway CPU per token ({user:.1f} user, {system:.1f} system); "
        f"client {client / num * 1e6:.1f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--tokens", type=int, default=1000, help="per stream")
    parser.add_argument("--rate", type=float, default=50_000, help="tokens per second offered to all streams together")
    args = parser.parse_args()
    with serving(args.rate) as (url, gateway):
        for num_streams in args.streams:
            print(measure(url, gateway, num_streams, args.tokens), flush=True)


if __name__ == "__main__":
    main()

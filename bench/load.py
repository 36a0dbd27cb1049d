"""Load generator for any server that speaks OpenAI's streaming completions; light, since it shares the server's cores.

    python bench/load.py http://127.0.0.1:8000 --vocab-size 8192 --concurrency 8 --num-requests 32
    python bench/load.py http://127.0.0.1:8000 --vocab-size 8192 --rate 4 --cv 2 --num-requests 100

With --concurrency the loop is closed: that many requests are in flight, a new one starts when one ends.
With --rate it is open: requests arrive on their own schedule, whether or not the server keeps up.
Prints the report as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import aiohttp
import msgspec
import orjson
import uvloop
from arrivals import gamma_arrivals
from load_report import summarize
from request_trace import RequestTrace
from workload import Workload

Progress = Callable[[RequestTrace], None]
READ_TIMEOUT_SECONDS = 600.0


class LoadClient:
    """Sends completions to one server and times what comes back. Use as an async context manager."""

    def __init__(self, base_url: str, on_finish: Progress = lambda trace: None) -> None:
        self._base_url = base_url.rstrip("/")
        self._on_finish = on_finish

    async def __aenter__(self) -> LoadClient:
        timeout = aiohttp.ClientTimeout(total=None, sock_read=READ_TIMEOUT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._session.close()

    async def model_name(self) -> str:
        async with self._session.get(f"{self._base_url}/v1/models", raise_for_status=True) as response:
            return str(orjson.loads(await response.read())["data"][0]["id"])

    async def send(self, body: bytes, arrival: float | None = None) -> RequestTrace:
        """One request to its end; a failure is written into the trace, never raised."""
        trace = RequestTrace(time.perf_counter() if arrival is None else arrival)
        try:
            await self._stream(body, trace)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            trace.error = f"{type(error).__name__}: {error}"
        trace.completion = time.perf_counter()
        self._on_finish(trace)
        return trace

    async def _stream(self, body: bytes, trace: RequestTrace) -> None:
        headers = {"Content-Type": "application/json"}
        async with self._session.post(f"{self._base_url}/v1/completions", data=body, headers=headers) as response:
            if response.status != 200:
                trace.error = f"HTTP {response.status}: {(await response.text())[:200]}"
                return
            is_done = False
            async for now, data in server_sent_events(response.content):
                if data == b"[DONE]":
                    is_done = True
                else:
                    record_chunk(trace, orjson.loads(data), now)
        if not is_done and not trace.error:
            trace.error = "stream ended without [DONE]"
        check_token_count(trace, orjson.loads(body)["max_tokens"])


async def server_sent_events(content: aiohttp.StreamReader) -> AsyncIterator[tuple[float, bytes]]:
    """(time of arrival, payload) of each `data:` event."""
    rest = b""
    async for piece in content.iter_any():
        now = time.perf_counter()
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if event.startswith(b"data:"):
                yield now, event[5:].strip()


def record_chunk(trace: RequestTrace, chunk: dict[str, object], now: float) -> None:
    if chunk.get("choices"):
        trace.chunk_times.append(now)
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        trace.num_prompt_tokens = usage["prompt_tokens"]
        trace.num_output_tokens = usage["completion_tokens"]
    if "error" in chunk:
        trace.error = f"error event: {chunk['error']}"


def check_token_count(trace: RequestTrace, expected: int) -> None:
    """Too few tokens are an error, since they would flatter the server; a closing chunk without a token is dropped."""
    if not trace.error and trace.num_output_tokens != expected:
        trace.error = f"{trace.num_output_tokens} output tokens instead of {expected}"
    if not trace.error and not trace.chunk_times:
        trace.error = "no chunk carried a token"
    del trace.chunk_times[max(trace.num_output_tokens, 1) :]


async def closed_loop(client: LoadClient, bodies: Iterable[bytes], concurrency: int) -> list[RequestTrace]:
    """Keeps `concurrency` requests in flight until all bodies are sent and answered."""
    pending = iter(bodies)

    async def lane() -> list[RequestTrace]:
        return [await client.send(body) for body in pending]

    async with asyncio.TaskGroup() as group:
        lanes = [group.create_task(lane()) for _ in range(concurrency)]
    return [trace for lane in lanes for trace in lane.result()]


async def open_loop(client: LoadClient, bodies: Sequence[bytes], arrivals: Sequence[float]) -> list[RequestTrace]:
    """Sends body i at arrivals[i] seconds from now; traces count from that time, even when the client was late."""
    start = time.perf_counter()

    async def send_at(body: bytes, arrival: float) -> RequestTrace:
        await asyncio.sleep(arrival - time.perf_counter())
        return await client.send(body, arrival)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(send_at(body, start + at)) for body, at in zip(bodies, arrivals, strict=True)]
    return [task.result() for task in tasks]


async def run(arguments: argparse.Namespace) -> None:
    workload = Workload(arguments.prompt_len, arguments.output_len, arguments.vocab_size, arguments.seed)

    def show(trace: RequestTrace) -> None:
        print("." if not trace.error else "E", end="", file=sys.stderr, flush=True)

    async with LoadClient(arguments.url, show) as client:
        model = await client.model_name()
        bodies = [workload.body(i, model) for i in range(arguments.num_requests)]
        cpu_start = time.process_time()
        if arguments.rate is None:
            traces = await closed_loop(client, bodies, arguments.concurrency)
        else:
            arrivals = gamma_arrivals(len(bodies), arguments.rate, arguments.cv, arguments.seed)
            traces = await open_loop(client, bodies, arrivals)
    report = summarize(traces, time.process_time() - cpu_start)
    print(file=sys.stderr)
    print(msgspec.json.format(msgspec.json.encode(report)).decode())


def main() -> None:
    parser = argparse.ArgumentParser(description="Drive a server that speaks OpenAI's streaming completions.")
    parser.add_argument("url", help="such as http://127.0.0.1:8000")
    parser.add_argument("--vocab-size", type=int, required=True, help="prompt token ids are drawn below this")
    parser.add_argument("--num-requests", type=int, default=64)
    parser.add_argument("--prompt-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--output-len", type=int, default=128, help="tokens (default: 128)")
    parser.add_argument("--seed", type=int, default=0, help="of prompts and arrivals; a new one avoids prefix hits")
    parser.add_argument("--cv", type=float, default=1.0, help="burstiness of the open loop (default: 1, Poisson)")
    loop = parser.add_mutually_exclusive_group(required=True)
    loop.add_argument("--concurrency", type=int, help="closed loop: requests in flight")
    loop.add_argument("--rate", type=float, help="open loop: requests per second")
    uvloop.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()

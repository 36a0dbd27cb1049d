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
from collections.abc import Callable, Iterable, Sequence

import msgspec
import orjson
import uvloop
from arrivals import gamma_arrivals
from http_stream import HttpStream, OnPiece
from load_report import summarize
from request_trace import RequestTrace
from workload import Workload

Progress = Callable[[RequestTrace], None]
TIMEOUT_SECONDS = 600.0  # of one request


class LoadClient:
    """Sends completions to one server and times what comes back. Use as an async context manager."""

    def __init__(self, base_url: str, on_finish: Progress = lambda trace: None) -> None:
        self._base_url = base_url.rstrip("/")
        self._on_finish = on_finish
        self._idle: list[HttpStream] = []

    async def __aenter__(self) -> LoadClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        for connection in self._idle:
            connection.close()

    async def model_name(self) -> str:
        """The first model that the server lists."""
        answer = bytearray()
        status = await self._request("GET", "/v1/models", b"", lambda now, piece: answer.extend(piece))
        if status != 200:
            raise ConnectionError(f"{self._base_url}/v1/models answered {status}")
        return str(orjson.loads(answer)["data"][0]["id"])

    async def send(self, body: bytes, arrival: float | None = None) -> RequestTrace:
        """One request to its end; a failure is written into the trace, never raised."""
        trace = RequestTrace(time.perf_counter() if arrival is None else arrival)
        reader = CompletionReader(trace)
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                status = await self._request("POST", "/v1/completions", body, reader.feed)
            reader.finish(status, orjson.loads(body)["max_tokens"])
        except (TimeoutError, OSError, ValueError) as error:
            trace.error = f"{type(error).__name__}: {error}"
        trace.completion = time.perf_counter()
        self._on_finish(trace)
        return trace

    async def _request(self, method: str, path: str, body: bytes, on_piece: OnPiece) -> int:
        connection = self._idle.pop() if self._idle else None
        if connection is None or connection.is_closed:
            connection = await HttpStream.connect(self._base_url)
        status = await connection.request(method, path, body, on_piece)
        self._idle.append(connection)
        return status


class CompletionReader:
    """Turns the body of a streamed completion into its trace as it arrives."""

    def __init__(self, trace: RequestTrace) -> None:
        self._trace = trace
        self._rest = b""  # an event not yet complete, or a body that is no event stream
        self._is_done = False

    def feed(self, now: float, piece: bytes) -> None:
        *events, self._rest = (self._rest + piece).split(b"\n\n")
        for event in events:
            if event == b"data: [DONE]":
                self._is_done = True
            elif event.startswith(b"data:"):
                record_chunk(self._trace, orjson.loads(event[5:]), now)

    def finish(self, status: int, num_expected: int) -> None:
        """Judges the whole response. Too few tokens are an error, since they would flatter the server."""
        trace = self._trace
        if status != 200:
            trace.error = f"HTTP {status}: {self._rest[:200].decode(errors='replace')}"
        elif not trace.error and not self._is_done:
            trace.error = "stream ended without [DONE]"
        elif not trace.error and trace.num_output_tokens != num_expected:
            trace.error = f"{trace.num_output_tokens} output tokens instead of {num_expected}"
        elif not trace.error and not trace.chunk_times:
            trace.error = "no chunk carried a token"
        del trace.chunk_times[trace.num_output_tokens :]  # a closing chunk carries no token


def record_chunk(trace: RequestTrace, chunk: dict[str, object], now: float) -> None:
    if chunk.get("choices"):
        trace.chunk_times.append(now)
    usage = chunk.get("usage")
    if isinstance(usage, dict):
        trace.num_prompt_tokens = usage["prompt_tokens"]
        trace.num_output_tokens = usage["completion_tokens"]
    if "error" in chunk:
        trace.error = f"error event: {chunk['error']}"


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

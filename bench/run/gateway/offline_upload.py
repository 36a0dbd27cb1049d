"""A large batch through the gateway: upload, validation, completion; its memory, and what others feel meanwhile.

    python -m bench.run.gateway.offline_upload --rows 50000 --row-bytes 4096

A fake worker answers, one token per row, so that the numbers are the gateway's and the store's. Memory is the gateway
process's resident set, above what it was before the upload. Latencies are those of one client that asks for the list of
batches and for the status of this one, in turns, all the time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.served import Server, serving_fake  # noqa: E402

CHAT = "/v1/chat/completions"
SAMPLE_SECONDS = 0.005


@dataclass
class Phase:
    name: str
    start: float
    end: float = 0.0

    def row(self, memory: list[tuple[float, float]], latencies: list[tuple[float, float]]) -> dict[str, Any]:
        """Of samples (time, value): bytes above the start, seconds."""

        def mine(samples: list[tuple[float, float]]) -> list[float]:
            return sorted(value for at, value in samples if self.start <= at <= self.end)

        seconds = mine(latencies)
        times = {"p50": seconds[len(seconds) // 2], "p99": seconds[len(seconds) * 99 // 100], "max": seconds[-1]}
        return {
            "phase": self.name,
            "seconds": round(self.end - self.start, 1),
            "memory_mib": round(mine(memory)[-1] / 2**20, 1),
            "ms": {name: round(1e3 * value, 1) for name, value in times.items()},
            "requests": len(seconds),
        }


def write_rows(path: Path, num_rows: int, row_bytes: int, model: str) -> None:
    with path.open("w") as file:
        for i in range(num_rows):
            body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": ""}]}
            row: dict[str, Any] = {"custom_id": f"row-{i}", "method": "POST", "url": CHAT, "body": body}
            body["messages"] = [{"role": "user", "content": "x" * (row_bytes - len(json.dumps(row)) - 1)}]
            file.write(json.dumps(row) + "\n")


def sample_memory(pid: int, stop: threading.Event, samples: list[tuple[float, float]]) -> None:
    process = psutil.Process(pid)
    start = process.memory_info().rss
    while not stop.wait(SAMPLE_SECONDS):
        samples.append((time.time(), process.memory_info().rss - start))


def ask(url: str, pipe: Connection) -> None:
    """In a process of its own, so that it waits for nobody but the server. Ends when the pipe has something to say."""
    samples: list[tuple[float, float]] = []
    path = "/v1/batches?limit=20"
    with httpx.Client(base_url=url) as client:
        while not pipe.poll(SAMPLE_SECONDS):
            at, start = time.time(), time.perf_counter()
            found = client.get(path).raise_for_status().json()
            samples.append((at, time.perf_counter() - start))
            if found["object"] == "list" and found["data"]:
                path = f"/v1/batches/{found['data'][0]['id']}"
            else:
                path = "/v1/batches?limit=20"
    pipe.send(samples)


class Watch:
    """Memory and latencies of a server, phase by phase."""

    def __init__(self, server: Server) -> None:
        self.phases: list[Phase] = []
        self._memory: list[tuple[float, float]] = []
        self._stop = threading.Event()
        arguments = (server.process.pid, self._stop, self._memory)
        self._sampler = threading.Thread(target=sample_memory, args=arguments)
        self._sampler.start()
        self._pipe, other = multiprocessing.Pipe()
        self._asker = multiprocessing.get_context("spawn").Process(target=ask, args=(server.url, other))
        self._asker.start()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        phase = Phase(name, time.time())
        yield
        phase.end = time.time()
        self.phases.append(phase)

    def close(self) -> list[dict[str, Any]]:
        """One row per phase."""
        self._stop.set()
        self._sampler.join()
        self._pipe.send(None)
        latencies = self._pipe.recv()
        self._asker.join()
        return [phase.row(self._memory, latencies) for phase in self.phases]


def measure(server: Server, rows: Path, waits_for_end: bool) -> list[dict[str, Any]]:
    watch = Watch(server)
    time.sleep(1.0)  # for the asking process to begin
    try:
        with httpx.Client(base_url=server.url, timeout=600) as client:
            with watch.during("upload"), rows.open("rb") as file:
                uploaded = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file})
                uploaded.raise_for_status()
            created = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
            with watch.during("validate"):
                batch = client.post("/v1/batches", json=created).json()
                batch = wait(client, batch["id"], {"validating"})
            if waits_for_end:
                with watch.during("complete"):
                    batch = wait(client, batch["id"], {"in_progress", "finalizing"})
                check(client, batch)
    finally:
        found = watch.close()
    return found


def wait(client: httpx.Client, batch_id: str, passing: set[str]) -> dict[str, Any]:
    while True:
        batch: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").json()
        if batch["status"] not in passing:
            return batch
        time.sleep(0.1)


def check(client: httpx.Client, batch: dict[str, Any]) -> None:
    counts = batch["request_counts"]
    if batch["status"] != "completed" or counts["completed"] != counts["total"]:
        raise SystemExit(f"the batch ended as {batch['status']}: {counts}, {batch['errors']}")
    with client.stream("GET", f"/v1/files/{batch['output_file_id']}/content") as response:
        num_lines = sum(1 for _ in response.iter_lines())
    if num_lines != counts["total"]:
        raise SystemExit(f"{num_lines} results for {counts['total']} rows")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--row-bytes", type=int, default=4096)
    parser.add_argument("--until-validated", action="store_true", help="do not wait for the rows to be run")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with serving_fake(folder, "--no-access-log", "--max-batch-file-bytes", "1G") as server:
            write_rows(folder / "rows.jsonl", args.rows, args.row_bytes, server.model)
            found = measure(server, folder / "rows.jsonl", not args.until_validated)
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{'phase':10} {'seconds':>8} {'memory':>10}   status and list: p50, p99, max")
    for row in found:
        times = ", ".join(f"{value:g}" for value in row["ms"].values())
        print(f"{row['phase']:10} {row['seconds']:8.1f} {row['memory_mib']:6.1f} MiB   {times} ms ({row['requests']})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

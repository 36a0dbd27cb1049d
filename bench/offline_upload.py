"""A large batch through the gateway: upload, validation, completion; its memory, and what others feel meanwhile.

    python bench/offline_upload.py --rows 50000 --row-bytes 4096

A fake worker answers, one token per row, so that the numbers are the gateway's and the store's. Memory is the gateway
process's resident set, above what it was before the upload. Latencies are those of one client that asks for the list of
batches and for the status of this one, in turns, all the time.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from fakes.served import Server, serving_fake  # noqa: E402

CHAT = "/v1/chat/completions"
SAMPLE_SECONDS = 0.02


@dataclass
class Phase:
    name: str
    seconds: float = 0.0
    peak_bytes: int = 0  # above the start
    latencies: list[float] = field(default_factory=list)

    def row(self) -> dict[str, Any]:
        ordered = sorted(self.latencies)
        at = {f"p{p}": round(1e3 * ordered[int(len(ordered) * p / 100)], 1) for p in (50, 99)} if ordered else {}
        worst = {"max": round(1e3 * ordered[-1], 1)} if ordered else {}
        memory = round(self.peak_bytes / 2**20, 1)
        return {"phase": self.name, "seconds": round(self.seconds, 1), "memory_mib": memory, "ms": at | worst}


def write_rows(path: Path, num_rows: int, row_bytes: int, model: str) -> None:
    with path.open("w") as file:
        for i in range(num_rows):
            body = {"model": model, "max_tokens": 1, "messages": [{"role": "user", "content": ""}]}
            row: dict[str, Any] = {"custom_id": f"row-{i}", "method": "POST", "url": CHAT, "body": body}
            body["messages"] = [{"role": "user", "content": "x" * (row_bytes - len(json.dumps(row)) - 1)}]
            file.write(json.dumps(row) + "\n")


class Watch:
    """Samples memory and latency of a server until it is closed, for one phase after the other."""

    def __init__(self, server: Server) -> None:
        self._process = psutil.Process(server.process.pid)
        self._url = server.url
        self._start_bytes = self._process.memory_info().rss
        self._stop = threading.Event()
        self.batch_id: str | None = None
        self.phase = Phase("start")
        self.phases: list[Phase] = []
        self._threads = [threading.Thread(target=self._sample_memory), threading.Thread(target=self._ask)]
        for thread in self._threads:
            thread.start()

    @contextmanager
    def during(self, name: str) -> Iterator[None]:
        self.phase = Phase(name)
        start = time.perf_counter()
        yield
        self.phase.seconds = time.perf_counter() - start
        self.phases.append(self.phase)

    def close(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _sample_memory(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            above = self._process.memory_info().rss - self._start_bytes
            self.phase.peak_bytes = max(self.phase.peak_bytes, above)

    def _ask(self) -> None:
        with httpx.Client(base_url=self._url) as client:
            paths = ["/v1/batches?limit=20", "/v1/batches"]
            number = 0
            while not self._stop.wait(SAMPLE_SECONDS):
                number += 1
                path = paths[number % 2]
                if number % 2 and self.batch_id is not None:
                    path = f"/v1/batches/{self.batch_id}"
                start = time.perf_counter()
                client.get(path).raise_for_status()
                self.phase.latencies.append(time.perf_counter() - start)


def measure(server: Server, rows: Path, waits_for_end: bool) -> list[Phase]:
    watch = Watch(server)
    try:
        with httpx.Client(base_url=server.url, timeout=600) as client:
            with watch.during("upload"), rows.open("rb") as file:
                uploaded = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file})
                uploaded.raise_for_status()
            created = {"input_file_id": uploaded.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
            with watch.during("validate"):
                batch = client.post("/v1/batches", json=created).json()
                watch.batch_id = batch["id"]
                batch = wait(client, batch["id"], {"validating"})
            if waits_for_end:
                with watch.during("complete"):
                    batch = wait(client, batch["id"], {"in_progress", "finalizing"})
                check(client, batch)
    finally:
        watch.close()
    return watch.phases


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
            phases = measure(server, folder / "rows.jsonl", not args.until_validated)
    found = [phase.row() for phase in phases]
    if args.json:
        print(json.dumps(found))
        return 0
    print(f"{'phase':10} {'seconds':>8} {'memory':>10}   status and list: p50, p99, max")
    for row in found:
        times = ", ".join(f"{value:g}" for value in row["ms"].values())
        print(f"{row['phase']:10} {row['seconds']:8.1f} {row['memory_mib']:6.1f} MiB   {times} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())

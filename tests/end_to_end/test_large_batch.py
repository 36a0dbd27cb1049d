"""A batch that is larger than what the gateway may hold in memory."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from fakes.served import Server, serving_fake

NUM_ROWS, ROW_BYTES = 15_000, 4096  # 60 MB
MAX_GROWTH_BYTES = 40 * 2**20  # less than the file; bench/run/gateway/offline_upload.py measures 50,000 rows
CHAT = "/v1/chat/completions"


@pytest.fixture
def fake_server(tmp_path: Path) -> Iterator[Server]:
    with serving_fake(tmp_path, "--no-access-log") as server:
        yield server


@contextmanager
def watched_memory(server: Server) -> Iterator[list[int]]:
    """The resident set of the gateway, sampled."""
    process = psutil.Process(server.process.pid)
    samples = [process.memory_info().rss]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(0.01):
            samples.append(process.memory_info().rss)

    thread = threading.Thread(target=sample)
    thread.start()
    yield samples
    stop.set()
    thread.join()


def write_rows(path: Path) -> None:
    with path.open("w") as file:
        for i in range(NUM_ROWS):
            body = {"max_tokens": 1, "messages": [{"role": "user", "content": "x" * (ROW_BYTES - 200)}]}
            row = {"custom_id": f"row-{i}", "method": "POST", "url": CHAT, "body": body}
            file.write(json.dumps(row) + "\n")


def until_validated(client: httpx.Client, batch_id: str) -> dict[str, Any]:
    deadline = time.monotonic() + 120
    while True:
        batch: dict[str, Any] = client.get(f"/v1/batches/{batch_id}").json()
        if batch["status"] != "validating":
            return batch
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)


def test_upload_and_validation_hold_little_of_the_file_in_memory(fake_server: Server, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows)
    with httpx.Client(base_url=fake_server.url, timeout=120) as client, watched_memory(fake_server) as samples:
        with rows.open("rb") as file:
            uploaded = client.post("/v1/files", data={"purpose": "batch"}, files={"file": file}).json()
        created = {"input_file_id": uploaded["id"], "endpoint": CHAT, "completion_window": "24h"}
        batch = until_validated(client, client.post("/v1/batches", json=created).json()["id"])
        client.post(f"/v1/batches/{batch['id']}/cancel").raise_for_status()
    assert uploaded["bytes"] == rows.stat().st_size
    assert (batch["status"], batch["request_counts"]["total"]) == ("in_progress", NUM_ROWS)
    assert max(samples) - samples[0] < MAX_GROWTH_BYTES

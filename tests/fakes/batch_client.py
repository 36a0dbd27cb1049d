"""Batches over HTTP, with the openai package, for tests that see the server from outside."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Sequence
from typing import Any

import openai

POLL_SECONDS = 0.05


def row(custom_id: str, body: dict[str, Any], url: str = "/v1/completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def submit(client: openai.OpenAI, rows: Sequence[dict[str, Any]], window: str = "24h") -> str:
    """The batch's id."""
    content = "".join(json.dumps(entry) + "\n" for entry in rows).encode()
    file = client.files.create(file=("rows.jsonl", io.BytesIO(content)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id,
        endpoint=rows[0]["url"],
        completion_window=window,  # type: ignore[arg-type]
    )
    return batch.id


def wait_until_ended(client: openai.OpenAI, batch_id: str, seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while (batch := client.batches.retrieve(batch_id)).status not in ("completed", "failed", "expired", "cancelled"):
        assert time.monotonic() < deadline, batch
        time.sleep(POLL_SECONDS)
    return batch


def results(client: openai.OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    return [] if file_id is None else [json.loads(line) for line in client.files.content(file_id).text.splitlines()]

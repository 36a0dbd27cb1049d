"""Batches in a store without a gateway: rows are written to a file and added as validated ones."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gateway.offline.store.lines import RowError, error_line
from gateway.offline.store.records import BatchRecord, CheckedRow, RowResult
from gateway.offline.store.store import NewBatch, OfflineStore

ENDPOINT = "/v1/completions"


def row_line(custom_id: str, body: dict[str, object]) -> bytes:
    row = {"custom_id": custom_id, "method": "POST", "url": ENDPOINT, "body": body}
    return json.dumps(row).encode() + b"\n"


async def upload(store: OfflineStore, content: bytes, tenant: str = "", purpose: str = "batch") -> str:
    async with store.upload(tenant) as part:
        await part.write(content)
        record = await store.create_file(
            part, tenant=tenant, purpose=purpose, filename="rows.jsonl", expires_after=None
        )
    return record.id


async def new_batch(
    store: OfflineStore,
    file_id: str,
    tenant: str = "",
    window_seconds: int = 86400,
    metadata: dict[str, str] | None = None,
) -> BatchRecord:
    new = NewBatch(
        endpoint=ENDPOINT,
        input_file_id=file_id,
        completion_window=f"{window_seconds}s",
        window_seconds=window_seconds,
        metadata=metadata,
    )
    return await store.create_batch(tenant, new)


async def begun_batch(
    store: OfflineStore,
    num_rows: int,
    bad: Sequence[int] = (),
    tenant: str = "",
    window_seconds: int = 86400,
    extra: dict[str, object] | None = None,
    metadata: dict[str, str] | None = None,
) -> BatchRecord:
    """Row i has the custom id "r<i>" and the prompt "prompt <i>"; the bad ones have failed their validation."""
    bodies = [json.dumps({"prompt": f"prompt {i}"} | (extra or {})).encode() for i in range(num_rows)]
    file_id = await upload(store, b"\n".join(bodies), tenant)
    batch = await new_batch(store, file_id, tenant, window_seconds, metadata)
    checked, offset = [], 0
    for i, body in enumerate(bodies):
        refusal = error_line(batch.id, i, f"r{i}", RowError("bad", "Bad.", line=i + 1)) if i in bad else None
        checked.append(CheckedRow(i, f"r{i}", offset, len(body), refusal))
        offset += len(body) + 1
    await store.claim(batch.id)
    await store.add_rows(batch, checked)
    return await store.begin_batch(batch.id, model="demo", errors=None)


def result(batch: BatchRecord, index: int, text: str = "done", is_error: bool = False) -> RowResult:
    return RowResult(batch.id, index, is_error, json.dumps({"row": index, "text": text}).encode())

"""What `client.batches` asks of the server, shared by threads and asyncio."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from hocket._calls import Call
from hocket._exceptions import APITimeoutError
from hocket._files.resource import query
from hocket._flows import Emit, Flow, fetch, fetch_patiently, nap

from .types import Batch, BatchPage, ResultPage

OnBatch = Callable[[Batch], None]
WINDOW = "24h"
RESULTS_PER_PAGE = 1000
MIN_POLL_SECONDS, MAX_POLL_SECONDS = 0.25, 5.0
_MAX_PAGE = 100  # OpenAI's


def batch_path(batch_id: str) -> str:
    return f"/v1/batches/{quote(batch_id, safe='')}"


def create_call(
    input_file_id: str,
    endpoint: str,
    completion_window: str = WINDOW,
    metadata: Mapping[str, str] | None = None,
    webhook_url: str | None = None,
    output_expires_after: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
) -> Call[Batch]:
    body: dict[str, Any] = {
        "input_file_id": input_file_id,
        "endpoint": endpoint,
        "completion_window": completion_window,
    }
    if metadata or webhook_url:
        body["metadata"] = {**(metadata or {}), **({"webhook_url": webhook_url} if webhook_url else {})}
    if output_expires_after is not None:
        body["output_expires_after"] = {"anchor": "created_at", "seconds": output_expires_after}
    return Call("POST", "/v1/batches", Batch, body | dict(extra_body or {}), creates=True)


def retrieve_call(batch_id: str) -> Call[Batch]:
    return Call("GET", batch_path(batch_id), Batch)


def cancel_call(batch_id: str) -> Call[Batch]:
    return Call("POST", f"{batch_path(batch_id)}/cancel", Batch)


def results_call(batch_id: str, cursor: str | None) -> Call[ResultPage]:
    path = query(f"{batch_path(batch_id)}/results", after=cursor, limit=RESULTS_PER_PAGE)
    return Call("GET", path, ResultPage)


def page_call(limit: int, after: str | None = None) -> Call[BatchPage]:
    """The newest first."""
    return Call("GET", query("/v1/batches", limit=limit, after=after), BatchPage)


def list_flow(limit: int | None, after: str | None) -> Flow[None]:
    """Emits batches, page by page, up to `limit` in all."""
    num_left = limit
    while num_left is None or num_left > 0:
        size = _MAX_PAGE if num_left is None else min(num_left, _MAX_PAGE)
        page = yield from fetch(page_call(size, after))
        for batch in page.data[:num_left]:
            yield Emit(batch)
        num_left = None if num_left is None else num_left - len(page.data)
        if not page.has_more or not page.data:
            return
        after = page.last_id or page.data[-1].id


def wait_flow(
    batch_id: str, on_progress: OnBatch | None, max_seconds: float | None, max_poll_seconds: float
) -> Flow[Batch]:
    started = time.monotonic()
    pace = Pace(max_poll_seconds)
    seen: Batch | None = None
    while True:
        batch = yield from fetch_patiently(retrieve_call(batch_id))
        if on_progress is not None:
            on_progress(batch)
        if batch.is_over:
            return batch
        if max_seconds is not None and time.monotonic() - started >= max_seconds:
            raise APITimeoutError(f"batch {batch_id} is still {batch.status}", phase="wait")
        yield from nap(pace.delay(has_news=batch != seen))
        seen = batch


class Pace:
    """How long to wait before the next look: longer while nothing happens."""

    def __init__(self, max_seconds: float = MAX_POLL_SECONDS) -> None:
        self._max_seconds = max_seconds
        self._seconds = 0.0

    def delay(self, has_news: bool) -> float:
        longer = max(MIN_POLL_SECONDS, 1.5 * self._seconds)
        self._seconds = min(self._max_seconds, MIN_POLL_SECONDS if has_news else longer)
        return self._seconds

"""`client.batches`: work that the server does when it has time, and keeps whatever happens."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from hocket._connection import AsyncConnection, Connection
from hocket._flows import aiterate, arun, iterate, run
from hocket._params import ChatParams

from .calls import (
    MAX_POLL_SECONDS,
    OnBatch,
    cancel_call,
    create_call,
    list_flow,
    retrieve_call,
    wait_flow,
)
from .rows import CHAT, MAX_BYTES, MAX_ROWS, Request
from .run import AsyncBatchRun, BatchRun, RunOptions, RunOrder, RunState
from .types import Batch, BatchResult


class BatchParams(TypedDict, total=False):
    """How a batch is created.

    completion_window     how long the server may take, such as "24h", which is the default
    metadata              up to 16 strings by name; the batch carries them
    webhook_url           told when the batch ends, if the server has a secret to sign with
    output_expires_after  seconds after which the server deletes the results
    extra_body            what has no name here yet
    """

    completion_window: str
    metadata: Mapping[str, str] | None
    webhook_url: str | None
    output_expires_after: int | None
    extra_body: Mapping[str, Any] | None


class RunParams(TypedDict, total=False):
    """How requests are run.

    endpoint         where requests go that are neither messages nor prompt; default: each says so itself
    order            "as_completed", or "input": then a result waits for those before it
    on_progress      called with a `Batch` each time that one is looked at
    params           `ChatParams` or `CompletionParams` of all requests; a request's own win
    rows_per_batch, bytes_per_batch   of the batches that the requests are divided into
    """

    endpoint: str | None
    order: RunOrder
    on_progress: OnBatch | None
    params: ChatParams | Mapping[str, Any]
    rows_per_batch: int
    bytes_per_batch: int
    completion_window: str
    metadata: Mapping[str, str] | None
    webhook_url: str | None
    output_expires_after: int | None


class Batches:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, input_file_id: str, *, endpoint: str = CHAT, **params: Unpack[BatchParams]) -> Batch:
        """Starts the rows of a file that was uploaded. Not sent again if it is unclear whether it arrived.

        `params`: see `BatchParams`.
        """
        return self._connection.fetch(create_call(input_file_id, endpoint, **params))

    def retrieve(self, batch_id: str) -> Batch:
        return self._connection.fetch(retrieve_call(batch_id))

    def list(self, *, limit: int | None = None, after: str | None = None) -> Iterator[Batch]:
        """The newest first; further pages are asked for as needed. `limit` is of all, not of a page."""
        return iterate(self._connection, list_flow(limit, after))

    def cancel(self, batch_id: str) -> Batch:
        """Rows that are done stay done; the batch is `cancelling`, then `cancelled`."""
        return self._connection.fetch(cancel_call(batch_id))

    def wait(
        self,
        batch_id: str,
        *,
        on_progress: OnBatch | None = None,
        max_seconds: float | None = None,
        max_poll_seconds: float = MAX_POLL_SECONDS,
    ) -> Batch:
        """Until it is over, however it ends; also while the server restarts.

        `on_progress` is called at each look, at most `max_poll_seconds` apart. Raises APITimeoutError if it is not over
        after `max_seconds`.
        """
        return run(self._connection, wait_flow(batch_id, on_progress, max_seconds, max_poll_seconds))

    def results(self, batch_id: str) -> Iterator[BatchResult]:
        """What has landed so far, without waiting; all, once the batch is over. `run(resume=...)` waits for the rest.

        From a server that has no results before the end there are none before it.
        """
        state = RunState((), [batch_id], _run_options({}, None))
        return iterate(self._connection, state.landed())

    def run(
        self,
        requests: Iterable[Request] | None = None,
        *,
        resume: str | Sequence[str] | None = None,
        **params: Unpack[RunParams],
    ) -> BatchRun:
        """Runs any number of requests and yields a `BatchResult` for each, as they finish.

            for result in client.batches.run(["What is 7 + 5?", "And 8 + 5?"], params={"max_tokens": 16}):
                print(result.index, result.text if result.is_ok else result.error)

        A request is a prompt, a list of messages, the body of a request, or a row with `custom_id` and `body`. A
        request that fails gives a result with an `error`; ValueError is raised for one that cannot be sent. Who stops
        early leaves the batches running; `resume` takes their ids and yields the results from the first on.

        `params`: see `RunParams`.
        """
        state = RunState(
            iter(_given(requests, resume)), _ids(resume), _run_options(params, self._connection.options.model)
        )
        return BatchRun(self._connection, state)


class AsyncBatches:
    """`Batches`, awaited; `list` and `run` are asynchronous iterators."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, input_file_id: str, *, endpoint: str = CHAT, **params: Unpack[BatchParams]) -> Batch:
        """See `Batches.create`."""
        return await self._connection.fetch(create_call(input_file_id, endpoint, **params))

    async def retrieve(self, batch_id: str) -> Batch:
        return await self._connection.fetch(retrieve_call(batch_id))

    def list(self, *, limit: int | None = None, after: str | None = None) -> AsyncIterator[Batch]:
        """See `Batches.list`."""
        return aiterate(self._connection, list_flow(limit, after))

    async def cancel(self, batch_id: str) -> Batch:
        """See `Batches.cancel`."""
        return await self._connection.fetch(cancel_call(batch_id))

    async def wait(
        self,
        batch_id: str,
        *,
        on_progress: OnBatch | None = None,
        max_seconds: float | None = None,
        max_poll_seconds: float = MAX_POLL_SECONDS,
    ) -> Batch:
        """See `Batches.wait`."""
        return await arun(self._connection, wait_flow(batch_id, on_progress, max_seconds, max_poll_seconds))

    def results(self, batch_id: str) -> AsyncIterator[BatchResult]:
        """See `Batches.results`."""
        state = RunState((), [batch_id], _run_options({}, None))
        return aiterate(self._connection, state.landed())

    def run(
        self,
        requests: Iterable[Request] | AsyncIterable[Request] | None = None,
        *,
        resume: str | Sequence[str] | None = None,
        **params: Unpack[RunParams],
    ) -> AsyncBatchRun:
        """See `Batches.run`; `requests` may be an asynchronous iterable."""
        given = _given(requests, resume)
        source = aiter(given) if isinstance(given, AsyncIterable) else iter(given)
        return AsyncBatchRun(
            self._connection, RunState(source, _ids(resume), _run_options(params, self._connection.options.model))
        )


def _given(requests: Any, resume: str | Sequence[str] | None) -> Any:
    if (requests is None) == (not resume):
        raise ValueError("give requests, or batches to resume; one of the two")
    if isinstance(requests, str | bytes | Mapping):
        raise ValueError("requests must be an iterable of requests, not a single one")
    return () if requests is None else requests


def _ids(resume: str | Sequence[str] | None) -> Sequence[str]:
    return [resume] if isinstance(resume, str) else (resume or ())


def _run_options(params: RunParams, model: str | None) -> RunOptions:
    given = params.get("params") or {}
    named = {name: value for name, value in given.items() if value is not None and name != "extra_body"}
    extra: Any = given.get("extra_body") or {}
    creation = ("completion_window", "metadata", "webhook_url", "output_expires_after")
    return RunOptions(
        params={**({"model": model} if model else {}), **named, **extra},
        endpoint=params.get("endpoint"),
        order=params.get("order", "as_completed"),
        batch={name: params[name] for name in creation if name in params},  # type: ignore[literal-required]
        on_progress=params.get("on_progress"),
        rows_per_batch=params.get("rows_per_batch", MAX_ROWS),
        bytes_per_batch=params.get("bytes_per_batch", MAX_BYTES),
    )

"""`client.batches.run`: requests in, results out as they land; batches, files and polling are hidden in between."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, BinaryIO, Literal, Self, cast

from hocket import _calls
from hocket._calls import Call
from hocket._connection import AsyncConnection, Connection
from hocket._decode import decode
from hocket._exceptions import NotFoundError, RateLimitError
from hocket._files.content import Lines
from hocket._files.resource import create_call as upload_call
from hocket._flows import END, Emit, Flow, Pull, aiterate, emit, fetch, fetch_patiently, iterate, nap, patiently

from .calls import OnBatch, Pace, create_call, page_call, results_call, retrieve_call
from .part import Part
from .rows import MAX_BYTES, MAX_ROWS, Chunk, Row, RowMaker
from .types import Batch, BatchResult, ResultLine

RunOrder = Literal["as_completed", "input"]
_NUM_RECENT = 20  # batches to look through for one whose creation was not answered


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How requests become batches. `params` fill in what a request does not say."""

    params: dict[str, Any]
    endpoint: str | None
    order: RunOrder
    batch: dict[str, Any]  # of create_call
    on_progress: OnBatch | None
    rows_per_batch: int = MAX_ROWS
    bytes_per_batch: int = MAX_BYTES

    def __post_init__(self) -> None:
        if self.order not in ("as_completed", "input"):
            raise ValueError(f"order must be 'as_completed' or 'input', not {self.order!r}")
        if not 1 <= self.rows_per_batch <= MAX_ROWS:
            raise ValueError(f"rows_per_batch must be between 1 and {MAX_ROWS}")


class RunState:
    """A run but for the I/O."""

    def __init__(self, requests: Any, resume: Sequence[str], options: RunOptions) -> None:
        self.batches: dict[str, Batch] = {}  # of this run, as last seen
        self._requests = requests
        self._resume = resume
        self._options = options
        self._parts: list[Part] = []  # those that have not ended
        self._delayed: list[Part] = []  # those that the server had no room for; the end of another starts one
        self._are_all_sent = bool(resume)
        self._has_feed = True  # whether the server tells results before a batch has ended
        self._held: dict[int, BatchResult] = {}  # for order="input"
        self._next_index = 0
        self._num_rows = 0
        self._tried_file_id = ""  # input of the batch that was last to be created
        self._abandoned: set[str] = set()  # ids of batches that failed and were started again

    def flow(self) -> Flow[None]:
        """Emits BatchResult."""
        try:
            for batch_id in self._resume:
                yield from self._adopt(batch_id)
            if not self._resume:
                yield from self._submit_all()
            pace = Pace()
            while self._parts:
                num_landed = yield from self._look()
                if self._parts:
                    yield from nap(pace.delay(has_news=num_landed > 0))
            for index in sorted(self._held):
                yield Emit(self._held.pop(index))
        except BaseException as error:
            self.explain(error)
            raise

    def landed(self) -> Flow[None]:
        """Emits what there is now of the batches to resume, and waits for nothing."""
        for batch_id in self._resume:
            part = Part((yield from fetch(retrieve_call(batch_id))), None, 0)
            if not part.batch.is_over:
                yield from self._read_feed(part)
            if part.batch.is_over:
                yield from self._finish(part)

    def explain(self, error: BaseException) -> None:
        """Adds how to go on to what stopped the run."""
        open_ids = [batch.id for batch in self.batches.values() if not batch.is_over]
        if open_ids and not getattr(error, "__notes__", None):
            are = "1 batch goes" if len(open_ids) == 1 else f"{len(open_ids)} batches go"
            error.add_note(
                f"{are} on without this program. Read the results with "
                f"client.batches.run(resume={list(self.batches)}) or `hocket batch results {' '.join(self.batches)}`."
            )
            if not self._are_all_sent or self._delayed:
                error.add_note("Requests that had not been sent by now are not among them.")

    # ---- requests -> batches ----

    def _submit_all(self) -> Flow[None]:
        """The file of one batch is written while the batches before it run."""
        options = self._options
        maker = RowMaker(options.params, options.endpoint)
        row = yield from self._next_row(maker)
        if row is None:
            return
        if "model" not in options.params and b'"model":' not in row.line:
            models = yield from fetch(_calls.models())
            if models.data:
                maker = RowMaker({**options.params, "model": models.data[0].id}, options.endpoint)
                row = maker.row(json.loads(row.line), 0)
        endpoint = row.endpoint
        while row is not None:
            chunk = Chunk(options.rows_per_batch, options.bytes_per_batch)
            first_index = self._num_rows - 1
            with tempfile.TemporaryFile() as spool:
                file = cast(BinaryIO, spool)
                while row is not None and chunk.takes(row):
                    if row.endpoint != endpoint:
                        raise ValueError(
                            f"request {self._num_rows - 1} is for {row.endpoint}, those before for {endpoint}: "
                            "run them apart"
                        )
                    chunk.add(row, self._num_rows - 1)
                    file.write(row.line)
                    row = yield from self._next_row(maker)
                batch = yield from self._submit(file, endpoint)
            self._add(Part(batch, chunk.index_of, first_index))
            self._are_all_sent = row is None
            yield from self._look()

    def _next_row(self, maker: RowMaker) -> Flow[Row | None]:
        request = yield Pull(self._requests)
        if request is END:
            return None
        row = maker.row(request, self._num_rows)
        self._num_rows += 1
        return row

    def _submit(self, file: BinaryIO, endpoint: str) -> Flow[Batch]:
        file.seek(0)
        uploaded = yield from fetch_patiently(upload_call(file, "batch", "rows.jsonl", None, None))
        return (yield from self._start(uploaded.id, endpoint))

    def _start(self, file_id: str, endpoint: str) -> Flow[Batch]:
        call = create_call(file_id, endpoint, **self._options.batch)
        self._tried_file_id = ""
        pace = Pace()
        while True:
            try:
                return (yield from patiently(partial(self._create, call, file_id)))
            except RateLimitError:
                if not self._parts:
                    raise
                num_landed = yield from self._look()
                yield from nap(pace.delay(has_news=num_landed > 0))

    def _create(self, call: Call[Batch], input_file_id: str) -> Flow[Batch]:
        """An earlier attempt that was not answered may have succeeded; rows that run twice cost twice."""
        if input_file_id == self._tried_file_id:
            page = yield from fetch(page_call(_NUM_RECENT))
            for batch in page.data:
                if batch.input_file_id == input_file_id and batch.id not in self._abandoned:
                    return batch
        self._tried_file_id = input_file_id
        return (yield from fetch(call))

    def _adopt(self, batch_id: str) -> Flow[None]:
        """A batch of an earlier run. Its input says which rows there are."""
        batch = yield from fetch_patiently(retrieve_call(batch_id))
        first_index = self._num_rows
        missing: dict[str, int] = {}
        is_known = True
        try:
            lines = Lines(batch.input_file_id)
            while (line := (yield from lines.line())) is not None:
                with suppress(ValueError, KeyError, TypeError):
                    missing[json.loads(line)["custom_id"]] = self._num_rows
                self._num_rows += 1
        except NotFoundError:
            is_known = False
        self._add(Part(batch, missing if is_known else None, first_index))

    def _add(self, part: Part) -> None:
        self._parts.append(part)
        self._saw(part, part.batch)

    # ---- batches -> results ----

    def _look(self) -> Flow[int]:
        """Emits what has landed since the last look; returns how many."""
        num_landed = 0
        for part in list(self._parts):
            if part not in self._parts:  # it ended while another was started again
                continue
            num_landed += (yield from self._read_feed(part)) if self._has_feed else 0
            if not self._has_feed:
                self._saw(part, (yield from fetch_patiently(retrieve_call(part.batch.id))))
            if part.batch.is_over:
                self._parts.remove(part)
                yield from self._end(part)
        return num_landed

    def _end(self, part: Part) -> Flow[None]:
        if part.was_too_much and self._parts:
            self._delayed.append(part)
            self._abandoned.add(part.batch.id)
            del self.batches[part.batch.id]
            return
        yield from self._finish(part)
        if self._delayed:
            again = self._delayed.pop(0)
            again.batch = yield from self._start(again.batch.input_file_id, again.batch.endpoint)
            again.cursor = None
            self._add(again)

    def _read_feed(self, part: Part) -> Flow[int]:
        num_landed = 0
        while True:
            try:
                page = yield from fetch_patiently(results_call(part.batch.id, part.cursor))
            except NotFoundError:
                # An OpenAI server without our extension; if the batch is what is missing, this says so
                self._saw(part, (yield from fetch(retrieve_call(part.batch.id))))
                self._has_feed = False
                return num_landed
            for line in page.data:
                num_landed += yield from self._land(part, line)
            part.cursor = page.cursor or part.cursor
            if not page.has_more:
                # Only now: what the batch ended with has been read
                self._saw(part, page.batch)
                return num_landed

    def _finish(self, part: Part) -> Flow[None]:
        """The rest is in the files; what is not even there has failed with its batch."""
        for file_id in (part.batch.output_file_id, part.batch.error_file_id):
            if file_id is None or part.is_complete:
                continue
            try:
                lines = Lines(file_id)
                while (text := (yield from lines.line())) is not None:
                    yield from self._land(part, decode(ResultLine, _calls.read_json(text)))
            except NotFoundError:
                continue
        for result in part.leftovers():
            yield from self._emit(result)

    def _land(self, part: Part, line: ResultLine) -> Flow[int]:
        result = part.take(line)
        if result is None:
            return 0
        yield from self._emit(result)
        return 1

    def _emit(self, result: BatchResult) -> Flow[None]:
        if self._options.order == "as_completed" or result.index is None:
            yield from emit(result)
            return
        self._held[result.index] = result
        while (ready := self._held.pop(self._next_index, None)) is not None:
            self._next_index += 1
            yield from emit(ready)

    def _saw(self, part: Part, batch: Batch) -> None:
        part.batch = self.batches[batch.id] = batch
        if self._options.on_progress is not None:
            self._options.on_progress(batch)


class BaseBatchRun:
    def __init__(self, state: RunState) -> None:
        self._state = state

    @property
    def batches(self) -> tuple[Batch, ...]:
        """As last seen. New ones are created while the run is iterated."""
        return tuple(self._state.batches.values())

    @property
    def batch_ids(self) -> tuple[str, ...]:
        """What `resume` takes."""
        return tuple(self._state.batches)


class BatchRun(BaseBatchRun):
    """Iterate over it for the results. Nothing is sent before the first is asked for.

    Leaving early leaves the batches running; `batch_ids` and the note on the exception say how to resume.
    """

    def __init__(self, connection: Connection, state: RunState) -> None:
        super().__init__(state)
        self._results: Iterator[BatchResult] = iterate(connection, state.flow())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchResult:
        return next(self._results)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._state.explain(error)
        self.close()

    def close(self) -> None:
        self._results.close()  # type: ignore[attr-defined]


class AsyncBatchRun(BaseBatchRun):
    """`BatchRun` with `async for` and `async with`."""

    def __init__(self, connection: AsyncConnection, state: RunState) -> None:
        super().__init__(state)
        self._results: AsyncIterator[BatchResult] = aiterate(connection, state.flow())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchResult:
        return await anext(self._results)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._state.explain(error)
        await self.close()

    async def close(self) -> None:
        await self._results.aclose()  # type: ignore[attr-defined]

"""A store through random work and random crashes, against a twin in plain Python."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fakes.offline_rows import begun_batch, upload
from fakes.store_twin import TwinBatch, crash
from gateway.offline.store import finalization
from gateway.offline.store.accounts import Quota
from gateway.offline.store.records import BatchRecord, BatchStatus, RowResult
from gateway.offline.store.store import OfflineStore

QUOTA = Quota(2**30, 10**6)
ORPHAN = "file-" + "0" * 24  # has no record
OUTCOMES = (BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)

indices = st.integers(0, 11)
results = st.lists(st.tuples(indices, st.booleans()), min_size=1, max_size=8)
which = st.integers(0, 3)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("begin"), st.integers(1, 12), st.frozensets(indices, max_size=3)),
        st.tuples(st.just("finish"), which, results),
        st.tuples(st.just("finish and crash"), which, results),
        st.tuples(st.just("finalize"), which, st.sampled_from(OUTCOMES)),
        st.tuples(st.just("finalize and crash"), which, st.sampled_from(OUTCOMES), st.integers(1, 3)),
        st.tuples(st.just("upload and crash"), st.booleans()),
        st.tuples(st.just("crash")),
    ),
    max_size=25,
)


class World:
    """A store and its twin."""

    def __init__(self, path: Path, url: str | None) -> None:
        self._open: Callable[[], OfflineStore] = lambda: OfflineStore.open(path, url, QUOTA)
        self.path = path
        self.store = self._open()
        self.batches: list[BatchRecord] = []
        self.twins: dict[str, TwinBatch] = {}
        self._serial = 0

    async def reopen(self) -> None:
        await crash(self.store)
        self.store = self._open()
        await self.store.recover()
        await self._settle()

    async def _settle(self) -> None:
        """Results that were handed in when the store crashed are there whole, or not at all."""
        for batch_id, twin in self.twins.items():
            _, landed, _ = await self.store.landed("", batch_id, 0, 1000)
            lines = {row.line for row in landed}
            for index, (is_error, line) in twin.unsure.items():
                if line in lines:
                    twin.finish(index, is_error, line)
            twin.unsure.clear()

    def results(self, batch: BatchRecord, asked: list[tuple[int, bool]]) -> list[RowResult]:
        made = []
        for index, is_error in asked:
            self._serial += 1
            made.append(RowResult(batch.id, index, is_error, json.dumps([index, self._serial]).encode()))
        return made

    async def begin(self, num_rows: int, bad: frozenset[int]) -> None:
        bad = frozenset(index for index in bad if index < num_rows)
        batch = await begun_batch(self.store, num_rows, sorted(bad))
        self.batches.append(batch)
        self.twins[batch.id] = TwinBatch(num_rows, bad)

    async def finish(self, batch: BatchRecord, asked: list[tuple[int, bool]], *, crashes: bool) -> None:
        handed_in = self.results(batch, asked)
        twin = self.twins[batch.id]
        if not crashes:
            await self.store.finish_rows(handed_in)
            for result in handed_in:
                twin.finish(result.index, result.is_error, result.line)
            return
        task = asyncio.create_task(self.store.finish_rows(handed_in))
        await asyncio.sleep(0)
        for result in handed_in:
            twin.unsure.setdefault(result.index, (result.is_error, result.line))
        await self.reopen()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def finalize(self, batch: BatchRecord, outcome: BatchStatus, steps: int | None) -> None:
        """`steps`: crashes after so many of the three."""
        twin = self.twins[batch.id]
        if twin.outcome is None and outcome is BatchStatus.COMPLETED and twin.pending:
            with pytest.raises(ValueError, match="pending"):
                await self.store.finalize(batch.id, outcome)
            return
        twin.outcome = twin.outcome or outcome
        if steps is None:
            await self.store.finalize(batch.id, outcome)
            return
        database, directory, now = self.store._database, self.store._directory, int(self.store.now())
        begun = finalization.begin(database, batch.id, outcome, now)
        if begun.is_open and steps > 1:
            sizes = finalization.write_files(database, directory, batch.id)
            if steps > 2:
                finalization.end(database, batch.id, sizes, now, self.store.webhooks)
        await self.reopen()

    async def upload_and_crash(self, publishes: bool) -> None:
        part = self.store.upload()
        await part.__aenter__()
        await part.write(bytes(3_000_000))
        if publishes:
            await part.publish(self.store.path(ORPHAN))
        await self.reopen()
        part._discard()
        assert not self.store.path(ORPHAN).exists()
        assert not list((self.path / "parts").iterdir())

    async def do(self, name: str, arguments: list[Any]) -> None:
        if name == "begin":
            await self.begin(*arguments)
        elif name == "crash":
            await self.reopen()
        elif name == "upload and crash":
            await self.upload_and_crash(*arguments)
        elif self.batches:
            batch = self.batches[arguments[0] % len(self.batches)]
            if name.startswith("finish"):
                await self.finish(batch, arguments[1], crashes=name.endswith("crash"))
            else:
                await self.finalize(batch, arguments[1], arguments[2] if name.endswith("crash") else None)

    async def check(self) -> None:
        for batch in self.batches:
            twin = self.twins[batch.id]
            now = await self.store.batch("", batch.id)
            assert (now.num_rows, now.num_completed, now.num_failed) == twin.counts
            pending = [row.index for row in await self.store.pending_rows(batch.id)]
            if twin.outcome is None:
                assert (now.status, pending) == (BatchStatus.IN_PROGRESS, twin.pending)
                continue
            assert (now.status, pending) == (twin.outcome, [])
            self._check_files(now, twin)
        self._check_folder(await self.store.list_files("", limit=1000, is_ascending=True))

    def _check_files(self, batch: BatchRecord, twin: TwinBatch) -> None:
        def lines(file_id: str | None) -> list[bytes]:
            return [] if file_id is None else self.store.path(file_id).read_bytes().splitlines()

        assert lines(batch.output_file_id) == twin.output()
        assert len(lines(batch.error_file_id)) == twin.num_rows - len(twin.output())

    def _check_folder(self, listed: tuple[list[Any], bool]) -> None:
        records, _ = listed
        sizes = {path.name: path.stat().st_size for path in (self.path / "files").iterdir()}
        assert sizes == {record.id: record.num_bytes for record in records}


async def check_history(path: Path, url: str | None, history: list[tuple[Any, ...]]) -> None:
    world = World(path, url)
    try:
        for name, *arguments in history:
            await world.do(name, arguments)
            await world.check()
        await world.reopen()
        await world.check()
    finally:
        await crash(world.store)


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # histories are short; shrinking them takes minutes
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(history=operations)
def test_a_store_is_its_twin_whatever_crashes(
    new_url: Callable[[], str | None], history: list[tuple[Any, ...]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(check_history(Path(folder), new_url(), history))


KILLED = """
import asyncio, sys
from pathlib import Path
from gateway.offline.store.records import RowResult
from gateway.offline.store.accounts import Quota
from gateway.offline.store.store import OfflineStore

async def main(path, url, batch_id):
    store = OfflineStore.open(Path(path), url or None, Quota(2**30, 10**6))
    async def finish(row):
        await store.finish_rows([RowResult(batch_id, row.index, False, b'{"row": %d}' % row.index)])
        print(row.index, flush=True)
    while rows := await store.pending_rows(batch_id, limit=40):
        await asyncio.gather(*(finish(row) for row in rows))

asyncio.run(main(*sys.argv[1:]))
"""


def told_before_death(command: list[str], num_lines: int, variables: dict[str, str]) -> list[int]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=variables) as process:
        assert process.stdout is not None
        told = [int(process.stdout.readline()) for _ in range(num_lines)]
        process.send_signal(signal.SIGKILL)
        return told + [int(line) for line in process.stdout.read().splitlines()]


async def test_what_was_acknowledged_before_sigkill_is_there(tmp_path: Path, new_url: Callable[[], str | None]) -> None:
    path, url = tmp_path / "data", new_url()
    store = OfflineStore.open(path, url, QUOTA)
    batch = await begun_batch(store, 500)
    await upload(store, b"another file")
    await store.close()
    acknowledged: set[int] = set()
    for num_lines in (3, 47, 90):
        command = [sys.executable, "-c", KILLED, str(path), url or "", batch.id]
        variables = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        told = await asyncio.to_thread(told_before_death, command, num_lines, variables)
        assert not acknowledged & set(told)
        acknowledged |= set(told)
        store = OfflineStore.open(path, url, QUOTA)
        pending = {row.index for row in await store.pending_rows(batch.id, limit=1000)}
        assert acknowledged.isdisjoint(pending)
        assert (await store.batch("", batch.id)).num_completed == 500 - len(pending)
        await store.close()

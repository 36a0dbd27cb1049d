"""The store's threads: one writes to the database, a few read and handle files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from sqlalchemy import Connection

from gateway.offline.database.database import Database

T = TypeVar("T")

_NUM_READERS = 4


class StoreThreads:
    """Changes happen one after the other, in the order in which they were asked for; the rest happens beside them."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._writer = ThreadPoolExecutor(1, "offline-writer")
        self._readers = ThreadPoolExecutor(_NUM_READERS, "offline-reader")
        self._tasks: set[asyncio.Task[Any]] = set()

    async def write(self, change: Callable[[Connection], T]) -> T:
        """One transaction. Returns after the commit."""

        def run() -> T:
            with self._database.writing() as connection:
                return change(connection)

        return await self.on_writer(run)

    async def read(self, query: Callable[[Connection], T]) -> T:
        """One snapshot."""

        def run() -> T:
            with self._database.reading() as connection:
                return query(connection)

        return await self.in_background(run)

    async def on_writer(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *arguments)

    async def in_background(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *arguments)

    async def shielded(self, work: Coroutine[Any, Any, T]) -> T:
        """Does all of it, even if whoever waits goes away: a thread cannot be stopped halfway either."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return await asyncio.shield(task)

    async def finish(self) -> None:
        """Waits for what `shielded` has begun."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def close(self, *, drops_waiting: bool = False) -> None:
        for threads in (self._writer, self._readers):
            threads.shutdown(cancel_futures=drops_waiting)

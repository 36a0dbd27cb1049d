"""Many small writes, one commit: whoever comes while a commit is under way shares the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

GATHER_SECONDS = 0.002  # that the first one waits for others


class GroupCommit(Generic[T]):
    """`commit` gets everything handed in, in order; its exception goes to all who took part."""

    def __init__(self, commit: Callable[[list[T]], Awaitable[None]]) -> None:
        self._commit = commit
        self._waiting: list[tuple[Sequence[T], asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def add(self, items: Sequence[T]) -> None:
        """Returns after the commit. A caller that is cancelled meanwhile takes nothing back. Without items: when what
        was handed in before has been tried, whether or not that succeeded.
        """
        done = asyncio.get_running_loop().create_future()
        self._waiting.append((items, done))
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        await done

    async def flush(self) -> None:
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(GATHER_SECONDS)
                group, self._waiting = self._waiting, []
                await self._commit_group(group)
        finally:
            self._task = None

    async def _commit_group(self, group: list[tuple[Sequence[T], asyncio.Future[None]]]) -> None:
        error: Exception | None = None
        try:
            await self._commit([item for items, _ in group for item in items])
        except Exception as failure:
            error = failure
        for items, done in group:
            if done.done():
                continue
            if error is None or not items:
                done.set_result(None)
            else:
                done.set_exception(error)

"""Who is being served right now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.generation import Generation


class OpenGenerations:
    def __init__(self) -> None:
        self._members: set[Generation] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __iter__(self) -> Iterator[Generation]:
        return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, generation: Generation) -> None:
        self._members.add(generation)
        self._is_empty.clear()

    def remove(self, generation: Generation) -> None:
        self._members.remove(generation)
        if not self._members:
            self._is_empty.set()

    async def wait_until_none(self, timeout_seconds: float) -> None:
        """Returns early when the last one ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), timeout_seconds)

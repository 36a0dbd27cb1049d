"""Who is being served right now."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

from gateway.protocol.errors import ApiError


class OpenGeneration(Protocol):
    def fail(self, error: ApiError) -> None:
        """Its client gets this instead of more tokens."""


class OpenGenerations:
    def __init__(self) -> None:
        self._members: set[OpenGeneration] = set()
        self._is_empty = asyncio.Event()
        self._is_empty.set()

    def __iter__(self) -> Iterator[OpenGeneration]:
        return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def add(self, generation: OpenGeneration) -> None:
        self._members.add(generation)
        self._is_empty.clear()

    def remove(self, generation: OpenGeneration) -> None:
        self._members.remove(generation)
        if not self._members:
            self._is_empty.set()

    async def wait_until_none(self, timeout_seconds: float) -> None:
        """Returns early when the last one ends."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_empty.wait(), timeout_seconds)

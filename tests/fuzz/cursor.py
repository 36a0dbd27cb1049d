"""Decisions out of an input's bytes. Where they have run out, everything is 0 or empty: any input is a whole story."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Cursor:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_empty(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def below(self, limit: int) -> int:
        """Of one byte."""
        byte = self.take(1)
        return byte[0] % limit if byte else 0

    def integer(self, size: int) -> int:
        """Signed, of `size` bytes."""
        return int.from_bytes(self.take(size), "little", signed=True)

    def choice(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def chunk(self) -> bytes:
        """As long as its first byte says."""
        return self.take(self.below(256))

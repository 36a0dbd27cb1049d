"""The rows of one batch that are yet to run, in the order in which they should: rows that begin alike together.

Holds indices only; bodies are read a page at a time, shortly before they are needed. Where several gateways share the
store, a page is leased when it is read: each has stretches of the same order, long ones at first, short ones towards
the end, so that none is left with much while others have nothing (guided self-scheduling).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from gateway.offline.running.prefix_order import order_by_prefix, prefix_key
from gateway.offline.store.leases import Leases
from gateway.offline.store.records import RowRecord
from gateway.offline.store.store import OfflineStore

SCAN_ROWS = 512  # per page while the order is made
PAGE_ROWS = 64
PAGE_BYTES = 2**20
LEASE_ROWS = 512  # that are looked at for a page of those that no other gateway has


class RowQueue:
    def __init__(self, store: OfflineStore, batch_id: str, order: Sequence[int]) -> None:
        """order: indices of pending rows, each once."""
        self._store = store
        self._batch_id = batch_id
        self._order = deque(order)
        self._page: deque[RowRecord] = deque()

    @classmethod
    async def load(cls, store: OfflineStore, batch_id: str, *, in_prefix_order: bool = True) -> RowQueue:
        """Reads every pending row once, to put them in order; or keeps the order of the input file."""
        keys: dict[int, bytes] = {}
        after = -1
        while page := await store.pending_rows(batch_id, after, SCAN_ROWS):
            keys |= await asyncio.to_thread(_keys, page) if in_prefix_order else {row.index: b"" for row in page}
            after = page[-1].index
        return cls(store, batch_id, await asyncio.to_thread(order_by_prefix, keys))

    def __len__(self) -> int:
        return len(self._order) + len(self._page)

    async def take(self) -> RowRecord | None:
        """The next row; None: there is none, or none that this gateway may have. One caller at a time."""
        while not self._page and self._order:
            await self._read_page()
        return self._page.popleft() if self._page else None

    def put_back(self, index: int) -> None:
        """It is taken again before the others. REQUIRES: it was taken, and has no result."""
        self._order.appendleft(index)

    def unread(self) -> None:
        """What has been read and not taken is to be read again."""
        self._order.extendleft(row.index for row in reversed(self._page))
        self._page.clear()

    async def _read_page(self) -> None:
        wanted = self._next(PAGE_ROWS) if self._store.leases is None else await self._lease(self._store.leases)
        try:
            self._page.extend(await self._store.pending_among(self._batch_id, wanted, PAGE_BYTES))
        except BaseException:
            self._order.extendleft(reversed(wanted))
            raise
        if self._page:  # what did not fit into the page
            rest = wanted[wanted.index(self._page[-1].index) + 1 :]
            self._order.extendleft(reversed(rest))

    def _next(self, num_rows: int) -> list[int]:
        return [self._order.popleft() for _ in range(min(num_rows, len(self._order)))]

    async def _lease(self, leases: Leases) -> list[int]:
        """Rows that others have leave the queue."""
        num_rows = max(1, min(PAGE_ROWS, len(self._order) // (2 * leases.num_runners)))
        candidates = self._next(LEASE_ROWS)
        try:
            taken, num_seen = await self._store.lease_rows(self._batch_id, candidates, num_rows)
        except BaseException:
            self._order.extendleft(reversed(candidates))
            raise
        self._order.extendleft(reversed(candidates[num_seen:]))
        return taken


def _keys(page: Sequence[RowRecord]) -> dict[int, bytes]:
    return {row.index: prefix_key(row.body) for row in page}

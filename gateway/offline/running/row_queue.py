"""The rows of one batch that are yet to run, in the order in which they should: rows that begin alike together.

Holds indices only; bodies are read a page at a time, shortly before they are needed. Where several gateways share the
store, a page is leased when it is read: each has stretches of the same order, long ones at first, short ones towards
the end, so that none is left with much while others have nothing (guided self-scheduling). Nodes of a fleet each have
stretches of what this gateway may run (nodes/stretches.py).
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Collection, Sequence

from gateway.offline.nodes.stretches import Stretches
from gateway.offline.running.prefix_order import num_shared, order_by_prefix, prefix_key
from gateway.offline.store.leases import Leases
from gateway.offline.store.records import RowRecord
from gateway.offline.store.store import OfflineStore

SCAN_ROWS = 512  # per page while the order is made
PAGE_ROWS = 64
PAGE_BYTES = 2**20
LEASE_ROWS = 512  # that are looked at for a page of those that no other gateway has


class RowQueue:
    def __init__(self, store: OfflineStore, batch_id: str, order: Sequence[int], shared: bytes = b"") -> None:
        """order: indices of pending rows, each once. shared: of each, what it has in common with the one before."""
        self._store = store
        self._batch_id = batch_id
        self._order = array("q", order)
        self._stretches = Stretches(len(order), shared)
        self._read: dict[int, RowRecord] = {}  # by position; they are in a stretch
        self._taken: dict[int, int] = {}  # positions of rows that were taken and have not ended, by index

    @classmethod
    async def load(
        cls, store: OfflineStore, batch_id: str, *, in_prefix_order: bool = True, for_nodes: bool = False
    ) -> RowQueue:
        """Reads every pending row once, to put them in order; or keeps the order of the input file.

        for_nodes: it is to be divided where rows have little in common.
        """
        keys: dict[int, bytes] = {}
        after = -1
        while page := await store.pending_rows(batch_id, after, SCAN_ROWS):
            keys |= await asyncio.to_thread(_keys, page) if in_prefix_order else {row.index: b"" for row in page}
            after = page[-1].index
        order = await asyncio.to_thread(order_by_prefix, keys)
        shared = await asyncio.to_thread(num_shared, keys, order) if for_nodes and in_prefix_order else b""
        return cls(store, batch_id, order, shared)

    def __len__(self) -> int:
        return len(self._stretches)

    def set_nodes(self, names: Collection[str]) -> None:
        """Among whom it is divided; nobody: there is one engine."""
        self._stretches.set_nodes(names)

    async def take(self, node: str | None = None) -> RowRecord | None:
        """The next row, for that node; None: there is none, or none that this gateway may have. One caller at a time.

        REQUIRES: the node is one of those that were set; None, where nobody is.
        """
        while positions := self._stretches.take(node, 1):
            if row := self._read.pop(positions[0], None):
                self._taken[row.index] = positions[0]
                return row
            self._stretches.put_back(positions, node)
            await self._read_page(node)
        return None

    def put_back(self, index: int, node: str | None = None) -> None:
        """It is taken again before the others. node: that had it. REQUIRES: it was taken, and has no result."""
        self._stretches.put_back([self._taken.pop(index)], node)

    def end(self, index: int) -> None:
        """It was taken, and has a result."""
        del self._taken[index]

    def unread(self) -> None:
        """What has been read and not taken is to be read again."""
        self._read.clear()

    async def _read_page(self, node: str | None) -> None:
        """REQUIRES: the node's next row has not been read."""
        if self._store.leases is None:
            wanted = self._next(node, PAGE_ROWS)
        else:
            wanted = await self._lease(self._store.leases, node)
        page: Sequence[RowRecord] = ()
        try:
            indices = [self._order[position] for position in wanted]
            page = await self._store.pending_among(self._batch_id, indices, PAGE_BYTES)
        except BaseException:
            self._stretches.put_back(wanted, node)
            raise
        if page:  # what did not fit into it is still to be read; what is not in it is not pending
            rows = {row.index: row for row in page}
            found = [position for position in wanted if self._order[position] in rows]
            self._read |= {position: rows[self._order[position]] for position in found}
            self._stretches.put_back(found + wanted[wanted.index(found[-1]) + 1 :], node)

    def _next(self, node: str | None, num_rows: int) -> list[int]:
        """Positions of rows that have not been read; those that have been stay in the queue."""
        taken = self._stretches.take(node, num_rows)
        self._stretches.put_back([position for position in taken if position in self._read], node)
        return [position for position in taken if position not in self._read]

    async def _lease(self, leases: Leases, node: str | None) -> list[int]:
        """Rows that others have leave the queue."""
        num_rows = max(1, min(PAGE_ROWS, self._stretches.num_of(node) // (2 * leases.num_runners)))
        candidates = self._next(node, LEASE_ROWS)
        indices = [self._order[position] for position in candidates]
        try:
            taken, num_seen = await self._store.lease_rows(self._batch_id, indices, num_rows)
        except BaseException:
            self._stretches.put_back(candidates, node)
            raise
        self._stretches.put_back(candidates[num_seen:], node)
        found = set(taken)
        return [position for position in candidates[:num_seen] if self._order[position] in found]


def _keys(page: Sequence[RowRecord]) -> dict[int, bytes]:
    return {row.index: prefix_key(row.body) for row in page}

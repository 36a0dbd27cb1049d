"""In place of vLLM's list of free blocks: whose cached blocks go first, by what they were last used for.

    ANYBODY   not cached, and those of offline work
    ONLINE    of requests without a session
    SESSION   of sessions
    LEASED    of sessions that are about to speak

Within a level the least recently used go first, as in vLLM. A level is an order and nothing more: every block counts as
free, so no request waits for one that is kept, and the last to go are still taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

ANYBODY, ONLINE, SESSION, LEASED = range(4)
NUM_LEVELS = 4
_UNUSED = NUM_LEVELS  # by nobody since it was handed out


class Block(Protocol):
    """What is read of vLLM's."""

    block_id: int
    ref_cnt: int


class FreeBlocks:
    """What vLLM's FreeKVCacheBlockQueue can do, over one of those per level."""

    def __init__(self, make_queue: Callable[[list[Any]], Any], free: list[Any], num_blocks: int) -> None:
        """make_queue: vLLM's class. free: all that are now, in order; nobody else's list has them any more."""
        self._queues = [make_queue([]) for _ in range(NUM_LEVELS)]
        self._levels = bytearray([_UNUSED]) * num_blocks
        self._places = bytearray(num_blocks)  # the queue that a free block is in
        self.num_free_blocks = len(free)
        self._queues[ANYBODY].append_n(free)

    def level(self, block: Block) -> int:
        level = self._levels[block.block_id]
        return ONLINE if level == _UNUSED else level

    def raise_to(self, level: int, blocks: Iterable[Block]) -> None:
        """Of blocks that somebody holds, or gives back next: never lower."""
        for block in blocks:
            old = self._levels[block.block_id]
            if old == _UNUSED or old < level:
                self.move(block, level)

    def move(self, block: Block, level: int) -> None:
        """To the end of that level, now if it is free, else when it is given back."""
        self._levels[block.block_id] = level
        if block.ref_cnt == 0:
            self._queues[self._places[block.block_id]].remove(block)
            self._put(block, level)

    # ---- as vLLM calls it ----

    def popleft(self) -> Any:
        return self.popleft_n(1)[0]

    def popleft_n(self, n: int) -> list[Any]:
        if n > self.num_free_blocks:
            raise ValueError("No free blocks available")
        taken: list[Any] = []
        for queue in self._queues:
            taken += queue.popleft_n(min(n - len(taken), queue.num_free_blocks))
        self.num_free_blocks -= n
        for block in taken:
            self._levels[block.block_id] = _UNUSED
        return taken

    def remove(self, block: Any) -> None:
        self._queues[self._places[block.block_id]].remove(block)
        self.num_free_blocks -= 1

    def append(self, block: Any) -> None:
        self._put(block, self.level(block))
        self.num_free_blocks += 1

    def append_n(self, blocks: Iterable[Any]) -> None:
        for block in blocks:
            self.append(block)

    def prepend_n(self, blocks: list[Any]) -> None:
        """They are not cached."""
        for block in blocks:
            self._levels[block.block_id], self._places[block.block_id] = _UNUSED, ANYBODY
        self._queues[ANYBODY].prepend_n(blocks)
        self.num_free_blocks += len(blocks)

    def get_all_free_blocks(self) -> list[Any]:
        return [block for queue in self._queues for block in queue.get_all_free_blocks()]

    def _put(self, block: Any, level: int) -> None:
        self._places[block.block_id] = level
        self._queues[level].append(block)


def install_free_blocks(pool: Any) -> FreeBlocks:
    """In vLLM's BlockPool."""
    old = pool.free_block_queue
    pool.free_block_queue = FreeBlocks(type(old), old.get_all_free_blocks(), len(pool.blocks))
    return pool.free_block_queue  # type: ignore[no-any-return]

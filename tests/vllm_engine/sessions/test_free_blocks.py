"""The list of free blocks against a plain one per level."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest

from vllm_engine.sessions.free_blocks import ANYBODY, LEASED, NUM_LEVELS, ONLINE, SESSION, FreeBlocks


@dataclass
class Block:
    block_id: int
    ref_cnt: int = 0


class PlainQueue(list[Any]):
    """What is used of vLLM's."""

    @property
    def num_free_blocks(self) -> int:
        return len(self)

    def popleft_n(self, n: int) -> list[Any]:
        taken = self[:n]
        del self[:n]
        return taken

    def append_n(self, blocks: list[Any]) -> None:
        self.extend(blocks)

    def prepend_n(self, blocks: list[Any]) -> None:
        self[:0] = blocks

    def get_all_free_blocks(self) -> list[Any]:
        return list(self)


def make(num: int) -> tuple[FreeBlocks, list[Block]]:
    blocks = [Block(i) for i in range(num)]
    return FreeBlocks(PlainQueue, list(blocks), num), blocks


def give_back(free: FreeBlocks, blocks: list[Block]) -> None:
    for block in blocks:
        block.ref_cnt = 0
    free.append_n(blocks)


def test_the_least_valuable_goes_first_and_of_equals_the_oldest() -> None:
    free, _ = make(6)
    taken = free.popleft_n(6)
    for block, level in zip(taken, (LEASED, SESSION, ANYBODY, SESSION, ONLINE), strict=False):
        block.ref_cnt = 1
        free.raise_to(level, [block])
    taken[5].ref_cnt = 1  # put out by somebody who said nothing: as any online request
    give_back(free, taken)
    assert [block.block_id for block in free.get_all_free_blocks()] == [2, 4, 5, 1, 3, 0]
    assert free.popleft() is taken[2]
    with pytest.raises(ValueError, match="No free blocks"):
        free.popleft_n(6)


def test_who_shares_a_block_can_only_raise_it_and_whoever_gets_it_anew_begins_again() -> None:
    free, _ = make(1)
    (block,) = free.popleft_n(1)
    block.ref_cnt = 1
    free.raise_to(SESSION, [block])
    free.raise_to(ANYBODY, [block])
    assert free.level(block) == SESSION
    give_back(free, [block])
    assert free.level(free.popleft()) == ONLINE


@pytest.mark.parametrize("seed", range(5))
def test_random_histories(seed: int) -> None:
    draw = random.Random(seed)
    free, blocks = make(30)
    plain: list[list[Block]] = [list(blocks), [], [], []]
    levels: dict[int, int] = {}
    held: list[Block] = []
    for _ in range(600):
        what = draw.randrange(5)
        if what == 0 and (n := draw.randint(1, 4)) <= free.num_free_blocks:
            wanted = [block for level in plain for block in level][:n]
            taken = free.popleft_n(n)
            assert taken == wanted
            for block in taken:
                next(level for level in plain if block in level).remove(block)
                levels.pop(block.block_id, None)
                block.ref_cnt = 1
            held += taken
        elif what == 1 and held:
            block = held.pop(draw.randrange(len(held)))
            block.ref_cnt = 0
            if draw.random() < 0.2:
                free.prepend_n([block])
                plain[ANYBODY].insert(0, block)
                levels.pop(block.block_id, None)
            else:
                free.append(block)
                plain[levels.get(block.block_id, ONLINE)].append(block)
        elif what == 2 and any(plain):
            block = draw.choice([block for level in plain for block in level])  # somebody has found it cached
            free.remove(block)
            next(level for level in plain if block in level).remove(block)
            block.ref_cnt = 1
            held.append(block)
        elif what == 3:
            block, to = draw.choice(blocks), draw.randrange(NUM_LEVELS)
            free.move(block, to)
            levels[block.block_id] = to
            if block.ref_cnt == 0:
                next(level for level in plain if block in level).remove(block)
                plain[to].append(block)
        elif held:
            block, to = draw.choice(held), draw.randrange(NUM_LEVELS)
            free.raise_to(to, [block])
            levels[block.block_id] = max(to, levels.get(block.block_id, -1))
        assert free.get_all_free_blocks() == [block for level in plain for block in level]
        assert free.num_free_blocks == sum(map(len, plain))

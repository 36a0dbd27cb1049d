"""The offline pool against a list that is searched in full, under random traffic."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest

from schedcore._core import algorithms

Path = tuple[int, ...]
Hashes = npt.NDArray[np.uint64]


def hashes(path: Path) -> Hashes:
    """One hash per block that covers all blocks before it."""
    return np.array([hash(path[: i + 1]) & (2**64 - 1) for i in range(len(path))], np.uint64)


def common(a: Path, b: Path) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@dataclass
class Twin:
    """Everything by full search. The cache is a set of paths, closed under prefixes."""

    pending: dict[int, tuple[int, Path]] = field(default_factory=dict)  # id -> prompt tokens, path; oldest first
    cache: set[Path] = field(default_factory=set)
    last: Path = ()

    def num_cached(self, path: Path) -> int:
        return next((i for i in range(len(path)) if path[: i + 1] not in self.cache), len(path))

    def cache_prefix(self, path: Path, num_blocks: int) -> None:
        self.cache |= {path[: i + 1] for i in range(num_blocks)}

    def evict_below(self, prefix: Path) -> None:
        self.cache = {path for path in self.cache if path[: len(prefix)] != prefix}

    def check_pick(self, bucket: int, picked: int | None) -> None:
        """Deepest in the cache, then closest to the last taken, then oldest."""
        members = {id_: path for id_, (n, path) in self.pending.items() if bucket_of(n) == bucket}
        if not members:
            assert picked is None
            return
        assert picked in members
        depth = max(map(self.num_cached, members.values()))
        assert self.num_cached(members[picked]) == depth
        ties = {id_: common(path, self.last) for id_, path in members.items() if self.num_cached(path) == depth}
        closest = max(ties.values())
        if closest > 0 and closest >= depth:
            assert ties[picked] == closest
        elif depth == 0:
            assert picked == next(iter(members))

    def check_collection(self, bucket: int, picked: list[int], max_requests: int) -> None:
        """As many as there are, each what the pool could pick next if those before it were taken."""
        num_members = sum(bucket_of(n) == bucket for n, _ in self.pending.values())
        assert len(picked) == min(max_requests, num_members)
        rest = Twin(dict(self.pending), self.cache, self.last)
        for request_id in picked:
            rest.check_pick(bucket, request_id)
            rest.last = rest.pending.pop(request_id)[1]

    def reference_counts(self, path: Path) -> list[int]:
        others = [other for _, other in self.pending.values()]
        return [sum(other[: i + 1] == path[: i + 1] for other in others) for i in range(len(path))]


def bucket_of(num_tokens: int) -> int:
    return max(k for k in range(64) if 2**k <= num_tokens**2)


def random_path(rng: np.random.Generator) -> Path:
    """Few different blocks, so that prompts share prefixes of all lengths."""
    return tuple(int(block) for block in rng.integers(0, 3, rng.integers(0, 9)))


def check_twin_and_pool_agree(rng: np.random.Generator, num_operations: int) -> None:
    pool, twin, paths = algorithms.OfflinePool(), Twin(), {}
    for request_id in range(num_operations):
        path, num_tokens = random_path(rng), int(rng.integers(1, 12))
        if rng.random() < 0.6:
            assert pool.insert(request_id, num_tokens, hashes(path), twin.num_cached(path))
            twin.pending[request_id] = (num_tokens, path)
            paths[request_id] = path
        if rng.random() < 0.3:
            num_blocks = int(rng.integers(0, len(path) + 1))
            twin.cache_prefix(path, num_blocks)
            pool.note_cached(hashes(path), num_blocks)
        if rng.random() < 0.15:
            twin.evict_below(random_path(rng) or (0,))  # nobody tells the pool
        if twin.pending and rng.random() < 0.2:
            victim = int(rng.choice(list(twin.pending)))
            assert pool.remove(victim)
            del twin.pending[victim]
        for bucket in range(8):
            if rng.random() < 0.1:
                max_requests = int(rng.integers(0, 60))
                collected = pool.collect(bucket, max_requests, lambda id_, path: twin.num_cached(paths[id_]))
                twin.check_collection(bucket, collected, max_requests)
            picked = pool.next(bucket, lambda id_, path: twin.num_cached(paths[id_]))
            twin.check_pick(bucket, picked)
            if picked is not None and rng.random() < 0.08:
                assert pool.take(picked)
                twin.last = twin.pending.pop(picked)[1]
        asked = random_path(rng)
        assert pool.reference_counts(hashes(asked)).tolist() == twin.reference_counts(asked)
        assert len(pool) == len(twin.pending)
        pool.check_invariants()


@pytest.mark.parametrize("seed", range(6))
def test_a_collection_begins_with_the_next_pick_and_has_none_twice(seed: int) -> None:
    rng = np.random.default_rng(seed)
    paths = [random_path(rng) for _ in range(200)]
    pool = pool_of(*paths)
    for path in paths[:20]:
        pool.note_cached(hashes(path), len(path))
    for num_left in range(200, 0, -1):
        collected = pool.collect(0, num_left + 1, lambda id_, path: len(path) // 2)
        assert len(set(collected)) == len(collected) == num_left
        assert collected[0] == pool.next(0, lambda id_, path: len(path) // 2)
        pool.check_invariants()
        assert pool.take(collected[int(rng.integers(0, 3)) % num_left])


@pytest.mark.parametrize("seed", range(6))
def test_picks_and_counts_equal_a_full_search(seed: int) -> None:
    check_twin_and_pool_agree(np.random.default_rng(seed), 400)


# Behaviour


def nothing_cached(request_id: int, path: Hashes) -> int:
    return 0


def pool_of(*paths: Path) -> algorithms.OfflinePool:
    """Request i has paths[i]; all in bucket 0."""
    pool = algorithms.OfflinePool()
    for request_id, path in enumerate(paths):
        pool.insert(request_id, 1, hashes(path))
    return pool


def test_buckets_are_powers_of_the_square_root_of_two() -> None:
    lower_bounds = [min(n for n in range(1, 200) if algorithms.OfflinePool.bucket_of(n) >= b) for b in range(12)]
    assert lower_bounds == [math.ceil(math.sqrt(2) ** b - 1e-9) for b in range(12)]
    assert algorithms.OfflinePool.bucket_of(2**31 - 1) == 61


def test_without_cache_the_oldest_comes_first_then_its_relatives() -> None:
    pool, order = pool_of((1, 2), (9,), (1, 3), (9, 9), (1, 2, 5)), []
    while (picked := pool.next(0, nothing_cached)) is not None:
        pool.take(picked)
        order.append(picked)
    assert order == [0, 4, 2, 1, 3]


def test_a_cached_prompt_comes_before_an_older_one() -> None:
    pool = pool_of((1, 2), (3, 4), (3, 5))
    pool.note_cached(hashes((3, 5, 6)), 3)
    assert pool.next(0, lambda id_, path: {0: 0, 1: 1, 2: 2}[id_]) == 2


def test_what_was_cached_before_it_came_is_known_too() -> None:
    pool = pool_of((1, 2), (3, 4))
    pool.insert(7, 1, hashes((5, 6)), num_cached=2)
    assert pool.next(0, lambda id_, path: 2 if id_ == 7 else 0) == 7


def test_a_match_stays_known_when_its_run_is_cut() -> None:
    pool = pool_of((1, 2, 3), (9,))
    pool.note_cached(hashes((1, 2, 3)), 2)
    pool.insert(5, 1, hashes((1, 2, 4)))  # its cached blocks not looked up
    pool.remove(0)
    assert pool.next(0, lambda id_, path: 2 if id_ == 5 else 0) == 5


def test_an_evicted_match_is_found_out() -> None:
    pool = pool_of((1, 2), (3, 4))
    pool.note_cached(hashes((3, 4)), 2)
    assert pool.next(0, nothing_cached) == 0


def test_a_collection_without_cache_is_by_age_each_with_its_relatives() -> None:
    pool = pool_of((1, 2), (9,), (), (1, 3), (9, 9), (1, 2, 5), ())
    assert pool.collect(0, 10, nothing_cached) == [0, 5, 3, 1, 4, 2, 6]
    assert pool.collect(0, 2, nothing_cached) == [0, 5]
    assert pool.collect(0, 0, nothing_cached) == []
    assert pool.collect(1, 10, nothing_cached) == []
    assert len(pool) == 7


def test_relatives_are_collected_by_the_depth_they_share() -> None:
    path = (1, 2, 3, 4)
    pool = pool_of(path, (8,), (1, 9), (1, 2, 3, 9), (1, 2, 9), (1, 2, 3, 4, 5), path)
    order = pool.collect(0, 10, nothing_cached)
    assert order == [0, 6, 5, 3, 4, 2, 1]


def test_a_collection_goes_on_with_the_next_deepest_match() -> None:
    """All share a first block, as of one instruction; documents 2 and 4 are cached, their questions differ."""
    pool = pool_of((1, 7), (1, 2, 3, 10), (1, 4, 10), (1, 2, 3, 11), (1, 4, 11), (5,))
    pool.note_cached(hashes((1, 4)), 2)
    pool.note_cached(hashes((1, 2, 3)), 3)
    cached = {0: 1, 1: 3, 2: 2, 3: 3, 4: 2, 5: 0}
    assert pool.collect(0, 10, lambda id_, path: cached[id_]) == [1, 3, 2, 4, 0, 5]


def test_a_collection_finds_out_what_was_evicted() -> None:
    pool = pool_of((1, 2), (3, 4), (5, 6))
    pool.note_cached(hashes((1, 2)), 2)
    pool.note_cached(hashes((3, 4)), 2)
    pool.note_cached(hashes((5, 6)), 2)
    cached = {0: 0, 1: 1, 2: 2}
    assert pool.collect(0, 10, lambda id_, path: cached[id_]) == [2, 1, 0]


def test_long_chains_of_prompts_are_collected() -> None:
    pool = algorithms.OfflinePool()
    path = hashes(tuple(range(3000)))
    for request_id in range(3000):
        pool.insert(request_id, 1, path[: request_id + 1])
    pool.note_cached(path, 2000)
    order = pool.collect(0, 3000, lambda id_, path: min(len(path), 2000))
    assert sorted(order) == list(range(3000))
    assert order[0] >= 1999


def test_nearest_bucket_prefers_the_shorter_of_two() -> None:
    pool = algorithms.OfflinePool()
    assert pool.nearest_bucket(100) is None
    for request_id, num_tokens in enumerate((64, 256, 4096)):
        pool.insert(request_id, num_tokens, hashes(()))
    nearest = [pool.nearest_bucket(n) for n in (1, 64, 128, 200, 100_000)]
    assert nearest == [pool.bucket_of(n) for n in (64, 64, 64, 256, 4096)]


def test_best_cached_bucket_is_that_of_the_deepest_match() -> None:
    pool = algorithms.OfflinePool()
    pool.insert(1, 64, hashes((1, 2, 3)), num_cached=1)
    pool.insert(2, 4096, hashes((1, 2, 4)), num_cached=2)
    assert pool.best_cached_bucket() == pool.bucket_of(4096)


def test_an_id_is_in_the_pool_once() -> None:
    pool = pool_of((1, 2))
    assert not pool.insert(0, 5, hashes((3,)))
    assert pool.remove(0)
    assert not pool.remove(0)
    assert not pool.take(0)
    assert pool.next(0, nothing_cached) is None


def test_block_hashes_cover_everything_before_them() -> None:
    tokens = np.arange(10, dtype=np.int32)
    first = algorithms.block_hashes(tokens, 4)
    assert len(first) == 2
    np.testing.assert_array_equal(algorithms.block_hashes(tokens[:8], 4), first)
    tokens[1] = 99
    assert not set(algorithms.block_hashes(tokens, 4)) & set(first)
    assert not set(algorithms.block_hashes(np.arange(10, dtype=np.int32), 4, seed=1)) & set(first)

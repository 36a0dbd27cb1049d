"""The threads of a fused kernel against exhaustive search, its volumes against the paper's sums."""

from __future__ import annotations

import numpy as np
import pytest

from bench.proofs.recompute_decode.thread_split import fused_volumes, split_threads


def test_thread_split_is_the_best_multiple_of_32() -> None:
    rng = np.random.default_rng(3)
    for _ in range(2000):
        total = 32 * int(rng.integers(2, 33))
        first, second = 10 ** rng.uniform(-6, 6, 2)
        every = range(32, total, 32)
        best = min(every, key=lambda threads: max(first / threads, second / (total - threads)))
        assert split_threads(first, second, total) == best


@pytest.mark.parametrize(
    ("first", "second", "threads"), [(0, 1, 32), (1, 0, 992), (0, 0, 512), (1, 1, 512), (1, 3, 256)]
)
def test_thread_split_leaves_a_warp_to_each(first: float, second: float, threads: int) -> None:
    assert split_threads(first, second, 1024) == threads


def test_odd_numbers_of_threads_are_refused() -> None:
    for total in (32, 100):
        with pytest.raises(ValueError, match="two warps"):
            split_threads(1.0, 1.0, total)


def test_volumes_are_the_papers_sums() -> None:
    s, r, h, vocabulary, l1, l2 = np.array([10.0, 200.0, 3000.0]), 0.4, 64.0, 1000.0, 3, 2
    first = np.sum(24 * h**2 * l2 * s * r + 4 * h * l2 * s**2 * r**2 + 2 * h * vocabulary * s * r)
    second = np.sum(24 * h**2 * (l1 + l2) + 4 * h * (l1 + l2) * (s + 1) + 2 * h * vocabulary * s)
    assert fused_volumes(s, r, h, vocabulary, l2, l1) == (pytest.approx(first), pytest.approx(second))

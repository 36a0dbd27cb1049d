"""The statistics of the cache timing bench, on samples whose answer is known."""

from __future__ import annotations

import random

from bench.run.tenants.cache_timing import SPIES, Samples, describe, is_as_promised


def samples(shift: float, seed: int, max_cached: int = 0) -> Samples:
    chance = random.Random(seed)
    present = [chance.gauss(10.0 - shift, 1.0) for _ in range(200)]
    return Samples(present, [chance.gauss(10.0, 1.0) for _ in range(200)], max_cached)


def test_equal_distributions_are_not_told_apart_and_shifted_ones_are() -> None:
    assert not samples(0.0, 1).differ
    assert samples(1.0, 1).differ
    assert samples(1.0, 1).advantage > 0.3 > samples(0.0, 1).advantage


def test_a_spy_that_learns_something_or_a_blind_control_breaks_the_promise() -> None:
    honest, seeing = samples(0.0, 2), samples(5.0, 2, max_cached=100)
    kept = dict(zip((spy.name for spy in SPIES), (honest, honest, seeing), strict=True))
    assert is_as_promised(kept)
    assert not is_as_promised(kept | {SPIES[0].name: samples(1.0, 3)})
    assert not is_as_promised(kept | {SPIES[1].name: samples(0.0, 2, max_cached=16)})
    assert not is_as_promised(kept | {SPIES[2].name: honest})
    assert SPIES[0].name in describe(kept)

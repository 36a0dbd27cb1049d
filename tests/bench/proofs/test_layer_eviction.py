"""Which part of a session's cache to keep: the lower layers are never the worse part, and hardly the better one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.proofs.layer_eviction import kept_by_blocks, kept_by_layers, stall

SECONDS = st.floats(0.001, 10.0)


@given(SECONDS, SECONDS, st.integers(1, 20), st.floats(0.0, 1.0))
def test_lower_layers_save_at_most_one_groups_share(copies: float, step: float, num_groups: int, share: float) -> None:
    by_blocks = stall(kept_by_blocks(share, num_groups), copies, step)
    by_layers = stall(kept_by_layers(share, num_groups), copies, step)
    assert sum(kept_by_blocks(share, num_groups)) == pytest.approx(sum(kept_by_layers(share, num_groups)), abs=1e-9)
    assert -1e-9 <= by_blocks - by_layers <= min(copies, step) / num_groups + 1e-9


@given(SECONDS, SECONDS, st.integers(1, 20))
def test_without_anything_kept_it_is_the_cores_estimate(copies: float, step: float, num_groups: int) -> None:
    expected = max(copies, step) + min(copies, step) / num_groups - step
    assert stall(kept_by_blocks(0.0, num_groups), copies, step) == pytest.approx(expected, abs=1e-9)

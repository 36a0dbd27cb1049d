"""Filters against a plain twin, also where the candidates do not suffice, and the noise itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from worker.sampling.draw import NUM_CANDIDATES, draw, draw_filtered
from worker.sampling.noise import uniforms


def kept_tokens(probs: list[float], top_k: int, top_p: float, min_p: float, slack: float) -> list[int]:
    """The plain twin; slack widens the filters that compare probabilities."""
    ranked = sorted(range(len(probs)), key=lambda token: -probs[token])
    ranked = [token for token in ranked if probs[token] >= min_p * probs[ranked[0]] - slack] or ranked[:1]
    if top_k > 0:
        ranked = ranked[:top_k]
    mass, kept, total = 0.0, [], sum(probs[token] for token in ranked)
    for token in ranked:
        if mass >= top_p * total + slack and top_p < 1:
            break
        kept.append(token)
        mass += probs[token]
    return kept


def random_probs(width: int, spread: float, seed: int) -> torch.Tensor:
    return (torch.randn(1, width, generator=torch.Generator().manual_seed(seed)) * spread).softmax(-1)


@given(
    width=st.sampled_from([1, 2, 7, 50, NUM_CANDIDATES, NUM_CANDIDATES + 1, 700]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
    seed=st.integers(0, 1000),
    top_k=st.sampled_from([0, 1, 2, 30, 300, 5000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.7, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_draws_reach_exactly_the_tokens_that_the_filters_keep(
    width: int, spread: float, seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    probs = random_probs(width, spread, seed)
    grid = torch.linspace(0, 1 - 1e-9, 64, dtype=torch.float64)
    drawn = draw_filtered(
        probs.expand(64, -1),
        grid,
        torch.full((64,), top_k),
        torch.full((64,), top_p),
        torch.full((64,), min_p),
    )
    as_list = probs[0].double().tolist()
    generous = kept_tokens(as_list, top_k, top_p, min_p, slack=1e-6)
    strict = kept_tokens(as_list, top_k, top_p, min_p, slack=-1e-6)
    as_likely = {token for token in range(width) if as_list[token] >= min(as_list[t] for t in generous)}
    assert set(drawn.tolist()) <= as_likely  # of equally likely tokens any may be kept
    assert len(set(drawn.tolist())) <= len(generous)
    # the ends of the uniform range are the likeliest token and the last one kept
    assert as_list[drawn[0]] == pytest.approx(max(as_list))
    assert as_list[drawn[-1]] <= as_list[strict[-1]] + 1e-9


def test_filtered_and_unfiltered_draws_agree_when_the_filters_keep_everything() -> None:
    probs = random_probs(20, 1.0, seed=0)
    ranked, order = probs.sort(descending=True)
    grid = torch.linspace(0, 0.999, 101, dtype=torch.float64)
    everything = (torch.full((101,), 20), torch.ones(101), torch.zeros(101))
    filtered = draw_filtered(probs.expand(101, -1), grid, *everything)
    assert filtered.tolist() == order[0][draw(ranked.expand(101, -1), grid)].tolist()


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    """Rows whose nucleus exceeds the candidates take another way than the others of their batch."""
    flat, steep = random_probs(2000, 0.0, 1), random_probs(2000, 5.0, 2)
    rows = torch.cat([flat, steep, flat, steep])
    uniform = torch.tensor([0.1, 0.3, 0.7, 0.9], dtype=torch.float64)
    filters = (torch.tensor([0, 0, 1500, 3]), torch.tensor([0.9, 0.9, 1.0, 0.8]), torch.tensor([0.0, 0.0, 0.5, 0.0]))
    together = draw_filtered(rows, uniform, *filters)
    for i in range(4):
        one = slice(i, i + 1)
        alone = draw_filtered(rows[one], uniform[one], *(values[one] for values in filters))
        assert alone.tolist() == together[one].tolist()


@given(seed=st.integers(0, 2**64 - 1), index=st.integers(0, 2**31))
def test_noise_is_a_function_of_seed_and_index_alone(seed: int, index: int) -> None:
    alone = uniforms(np.array([seed], dtype=np.uint64), np.array([index]))
    seeds, indices = np.array([5, seed, 7], dtype=np.uint64), np.array([index, index, 0])
    assert uniforms(seeds, indices)[1] == alone[0]
    assert 0 <= alone[0] < 1


@pytest.mark.parametrize("along", ["seed", "index"])
def test_noise_is_uniform_and_uncorrelated_along_seeds_and_indices(along: str) -> None:
    count = 20_000
    varying, fixed = np.arange(count), np.full(count, 3)
    seeds, indices = (varying, fixed) if along == "seed" else (fixed, varying)
    values = uniforms(seeds.astype(np.uint64), indices.astype(np.int64))
    assert kstest(values, "uniform").pvalue > 0.001
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
    assert len(set(values.tolist())) == count

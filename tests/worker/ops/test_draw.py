"""Filters against a plain twin, also where the candidates do not suffice, and the noise itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import kstest

from worker.ops.draw import draw, keep_likeliest
from worker.ops.noise import uniforms


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
    width=st.sampled_from([1, 2, 7, 50, 700]),
    spread=st.sampled_from([0.0, 0.1, 1.0, 4.0]),
    seed=st.integers(0, 1000),
    top_k=st.sampled_from([-1, 0, 1, 2, 30, 300, 5000]),
    top_p=st.sampled_from([0.01, 0.5, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.7, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_filters_keep_what_their_plain_definition_keeps(
    width: int, spread: float, seed: int, top_k: int, top_p: float, min_p: float
) -> None:
    probs = random_probs(width, spread, seed)
    kept = keep_likeliest(probs, torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p]))[0]
    as_list = probs[0].double().tolist()
    lowest = {
        slack: min(as_list[token] for token in kept_tokens(as_list, top_k, top_p, min_p, slack))
        for slack in (-1e-6, 1e-6)
    }
    for token, probability in enumerate(as_list):
        if probability >= lowest[-1e-6]:
            assert kept[token] == probs[0, token]
        elif probability < lowest[1e-6]:
            assert kept[token] == 0


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    flat, steep = random_probs(2000, 0.0, 1), random_probs(2000, 5.0, 2)
    rows = torch.cat([flat, steep, flat, steep])
    uniform = torch.tensor([0.1, 0.3, 0.7, 0.9], dtype=torch.float64)
    filters = (torch.tensor([0, 0, 1500, 3]), torch.tensor([0.9, 0.9, 1.0, 0.8]), torch.tensor([0.0, 0.0, 0.5, 0.0]))
    together = draw(keep_likeliest(rows, *filters), uniform)
    for i in range(4):
        one = slice(i, i + 1)
        alone = draw(keep_likeliest(rows[one], *(values[one] for values in filters)), uniform[one])
        assert alone.tolist() == together[one].tolist()


def test_draws_invert_the_cumulated_weights() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]])
    uniform = [0.0, 0.2499, 0.25, 0.7499, 0.75, 1 - 2**-53]
    assert draw(weights.expand(6, -1), torch.tensor(uniform, dtype=torch.float64)).tolist() == [1, 1, 3, 3, 4, 4]


def test_probabilities_that_are_no_numbers_still_give_a_token() -> None:
    broken = torch.full((2, 9), float("nan"))
    everything = (torch.tensor([0, 3]), torch.tensor([1.0, 0.5]), torch.tensor([0.0, 0.1]))
    uniform = torch.tensor([0.0, 0.99], dtype=torch.float64)
    assert all(0 <= token < 9 for token in draw(keep_likeliest(broken, *everything), uniform).tolist())


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

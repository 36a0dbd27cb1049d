"""What one salt has asked changes nothing for another: no cached token, and not a figure of its plans."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.hashing_engine import HashingEngine

tokens = st.lists(st.integers(0, 4), min_size=12, max_size=12)
POLICIES = ["fcfs", "hocket", "priority"]

# (request, row, begin, end) of the spy's part of each step
Plan = list[list[tuple[int, int, int, int]]]


def engine_of(policy: str, num_units: int) -> HashingEngine:
    return HashingEngine(
        num_units=num_units,
        num_layers=1,
        block_size=2,
        max_model_len=32,
        max_num_seqs=4,
        max_num_batched_tokens=8,
        policy=policy,
    )


def spied(policy: str, num_units: int, victim: list[list[int]], spy: list[list[int]], together: bool) -> Any:
    """What the spy sees when the victim has asked, or asks beside it: cached tokens, plans, free memory at the end."""
    engine = engine_of(policy, num_units)
    for i, prompt in enumerate(victim):
        engine.add(100 + i, prompt, 3, cache_salt="victim")
    if not together:
        engine.run()
    for i, prompt in enumerate(spy):
        engine.add(i, prompt, 3, cache_salt="spy")
    plans: Plan = []
    while engine.scheduler.has_work():
        step = engine.step()
        plans.append([(seq.request_id, seq.row, seq.begin, seq.end) for seq in step if seq.request_id < 100])
    return [engine.requests[i].num_cached_tokens for i in range(len(spy))], plans


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("together", [False, True], ids=["after", "beside"])
@pytest.mark.parametrize("num_units", [400, 30], ids=["room", "little memory"])
@given(guess=tokens, other=tokens)
@settings(max_examples=25, deadline=None)
def test_a_guess_that_is_right_looks_like_one_that_is_wrong(
    policy: str, together: bool, num_units: int, guess: list[int], other: list[int]
) -> None:
    right = spied(policy, num_units, [guess], [guess], together)
    wrong = spied(policy, num_units, [other], [guess], together)
    assert right == wrong
    assert right[0] == [0]


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_salt_would_show(policy: str) -> None:
    """The method sees a shared cache."""
    engine = engine_of(policy, 400)
    for i in range(2):
        engine.add(i, list(range(5)) * 2, 3, cache_salt="victim")
        engine.run()
    assert engine.requests[1].num_cached_tokens

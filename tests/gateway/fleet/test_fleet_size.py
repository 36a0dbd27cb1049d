"""A fleet whose engines are known: what queueing theory says it needs at least, it asks for, and not much more."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from fakes.fake_engine import INFO
from fakes.manual_clock import ManualClock
from gateway.fleet.fleet_size import SPARE, WINDOW_SECONDS, FleetSize
from schedcore.api.types import EngineRequest, RequestClass
from schedcore.serving.arrival_news import ArrivalNews

PREFILL_SECONDS, TOKENS = 1.0, 1000  # of a prompt, alone
ENGINE = msgspec.structs.replace(
    INFO,
    block_size=16,
    units_per_block=1,
    num_units=10_000,
    max_num_seqs=64,
    max_num_batched_tokens=TOKENS,
    latency_form="",
    latency_coefficients={
        "step_base": 1e-3,
        "prefill_token": PREFILL_SECONDS / TOKENS,
        "decode_seq": 1e-6,
        "decode_context": 0.0,
    },
)


def asked(number: int, **fields: object) -> EngineRequest:
    """Of prompts that have nothing in common."""
    prompt = [int(token) for token in np.random.default_rng(number).integers(0, 1000, TOKENS)]
    return msgspec.structs.replace(EngineRequest(number, prompt, 4), **fields)


def loaded(rate: float, seconds: float, target: float | None = 3.0, **fields: object) -> FleetSize:
    """Requests that came at random for so long."""
    clock = ManualClock()
    size = FleetSize(target, "least_loaded", clock)
    gaps = np.random.default_rng(0).exponential(1 / rate, int(rate * seconds))
    for number, gap in enumerate(gaps):
        clock.advance(float(gap))
        size.note([asked(number, **fields)])
    return size


@pytest.mark.parametrize("rate", [0.2, 1.5, 4.0])
def test_it_asks_for_what_the_work_takes_and_little_more(rate: float) -> None:
    found = loaded(rate, 120).count(ENGINE, 4.0)
    least = math.floor(rate * PREFILL_SECONDS) + 1  # fewer never catch up
    assert found is not None
    assert least + SPARE <= found <= 2 * least + 1 + SPARE


@pytest.mark.parametrize("rate", [0.2, 3.0])
@pytest.mark.parametrize("alike", [False, True])
def test_what_came_through_other_gateways_counts_as_its_own(rate: float, *, alike: bool) -> None:
    """Of three gateways, who have the requests in turn, each asks for what one that has all of them asks for."""
    clock = ManualClock()
    gaps = np.random.default_rng(0).exponential(1 / rate, int(rate * 120))
    whole, *sizes = (FleetSize(3.0, "advised", clock) for _ in range(4))
    names = [f"gateway-{i}".encode() for i in range(3)]
    engines = [ArrivalNews(clock) for _ in range(2)]
    for engine in engines:
        for name in names:
            engine.join(name)
    draw = np.random.default_rng(1)
    for number, gap in enumerate(gaps):
        clock.advance(float(gap))
        request = asked(number, session_id=f"{number % 7}", **({"prompt_token_ids": [5] * TOKENS} if alike else {}))
        whole.note([request])
        sizes[number % 3].note([request])
        engines[draw.integers(2)].note_request(names[number % 3], request)
        for size, name in zip(sizes, names, strict=True):
            if draw.random() < 0.5:  # late, and one engine's before the other's
                for engine in engines:
                    size.note_others(engine.take(name))
    for size, name in zip(sizes, names, strict=True):
        for engine in engines:
            size.note_others(engine.take(name))
    wanted = whole.count(ENGINE, 4.0)
    assert [size.count(ENGINE, 4.0) for size in sizes] == [wanted] * 3
    alone = FleetSize(3.0, "advised", clock)
    assert wanted is not None
    assert wanted > SPARE
    assert alone.count(ENGINE, 4.0) == SPARE


def test_a_request_that_goes_on_at_another_engine_counts_once() -> None:
    size, again = loaded(1.5, 120), loaded(1.5, 120)
    for number in range(int(1.5 * 120)):
        again.note([asked(number, num_prior_tokens=1, age_ms=10.0)])
    assert again.count(ENGINE, 4.0) == size.count(ENGINE, 4.0)
    assert len(again._window) == len(size._window)


def test_a_tighter_target_needs_no_fewer_nodes() -> None:
    by_target = [loaded(2.0, 90, target).count(ENGINE, 4.0) or 0 for target in (10.0, 3.0, 1.2)]
    assert by_target == sorted(by_target)
    assert by_target[0] < by_target[-1]


def test_a_target_that_no_number_of_nodes_holds_asks_for_those_that_help() -> None:
    found = loaded(0.5, 60, target=PREFILL_SECONDS / 2).count(ENGINE, 4.0)
    assert found == 1 + SPARE


def test_prompts_that_begin_alike_need_fewer_nodes() -> None:
    alike = loaded(3.0, 60, prompt_token_ids=list(range(TOKENS))).count(ENGINE, 4.0)
    different = loaded(3.0, 60).count(ENGINE, 4.0)
    assert alike is not None
    assert different is not None
    assert alike < different


def test_offline_work_asks_for_nothing() -> None:
    assert loaded(4.0, 60, request_class=RequestClass.OFFLINE).count(ENGINE, 4.0) == SPARE


def test_what_came_long_ago_is_forgotten() -> None:
    clock = ManualClock()
    size = FleetSize(2.5, "advised", clock)
    size.note([asked(number) for number in range(20)])
    assert (size.count(ENGINE, 4.0) or 0) > 2 + SPARE
    clock.advance(WINDOW_SECONDS + 1)
    assert size.count(ENGINE, 4.0) == SPARE


def test_without_a_target_or_known_step_times_nobody_says_how_many() -> None:
    assert loaded(1.0, 10, target=None).count(ENGINE, 4.0) is None
    unknown = msgspec.structs.replace(ENGINE, latency_coefficients={})
    assert loaded(1.0, 10).count(unknown, 4.0) is None

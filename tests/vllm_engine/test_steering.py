"""Steering over the real advisor; the requests are as vLLM's as far as it reads them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from schedcore._core import Advisor, RequestClass, SchedulerConfig
from vllm_engine.steering import EXTRA, Steering


@dataclass
class Params:
    extra_args: dict[str, Any] | None = None


@dataclass
class Request:
    request_id: str
    prompt_token_ids: list[int] | None = field(default_factory=lambda: [1] * 40)
    max_tokens: int = 10
    num_computed_tokens: int = 0
    priority: int = 0
    cache_salt: str | None = None
    sampling_params: Params | None = field(default_factory=Params)


@dataclass
class Step:
    num_scheduled_tokens: dict[str, int]
    preempted_req_ids: set[str] | None = None

    @property
    def total_num_scheduled_tokens(self) -> int:
        return sum(self.num_scheduled_tokens.values())


@dataclass
class Output:
    request_id: str
    new_token_ids: list[int] = field(default_factory=lambda: [7])


def make(is_exact: bool = True) -> Steering:
    config = SchedulerConfig(num_units=200, num_layers=1, layers_per_unit=1, max_num_batched_tokens=64, policy="hocket")
    return Steering(Advisor(config), clock=lambda: 0.0, is_exact=is_exact)


def run(steering: Steering, requests: list[Request], tokens: dict[str, int], *preempted: str) -> Step:
    """A step of vLLM's: its tokens count as computed when it is noted."""
    step = Step(tokens, set(preempted))
    for request in requests:
        request.num_computed_tokens += tokens.get(request.request_id, 0)
    steering.note(step, {request.request_id: request for request in requests})
    return step


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_request_is_admitted_computed_and_forgotten(is_exact: bool) -> None:
    steering, request = make(is_exact), Request("a")
    steering.add(request, lambda: 0)
    advice = steering.advise([], 100)
    assert advice.admitted == [request]
    assert advice.limits == {"a": 40}
    step = run(steering, [request], {"a": 40})
    steering.commit(step, [Output("a")])
    advice = steering.advise([request], 97)
    assert (advice.num_tokens, advice.num_granted, advice.limits) == (1, 1, {})
    assert steering.num_told == (0 if is_exact else 2)
    steering.end("a", is_complete=True)
    steering.end("a", is_complete=True)
    assert not steering.knows("a")
    steering.check_invariants()


def test_what_is_cached_is_not_granted() -> None:
    steering = make()
    steering.add(Request("a"), lambda: 32)
    assert steering.advise([], 100).limits == {"a": 8}


def test_a_step_that_is_not_as_advised_is_told() -> None:
    steering, first, second = make(), Request("a"), Request("b")
    for request in (first, second):
        steering.add(request, lambda: 0)
    assert steering.advise([], 100).num_granted == 2
    step = run(steering, [first, second], {"a": 40})  # vLLM refused the other one
    steering.commit(step, [Output("a")])
    assert steering.advise([first], 97).admitted == [second]
    assert steering.num_told == 0
    step = run(steering, [first, second], {"a": 1}, "a")
    steering.commit(step, [])
    first.num_computed_tokens = 0  # put out in the step after it had been planned
    assert steering.advise([], 100).admitted == [first, second]
    steering.check_invariants()


def test_who_runs_is_told_where_vllm_says_another_number() -> None:
    steering, request = make(), Request("a")
    steering.add(request, lambda: 0)
    steering.advise([], 100)
    run(steering, [request], {"a": 40})
    assert steering.advise([], 100).admitted == [request]  # it was put out behind our back
    assert steering.num_told == 1


def test_who_cannot_be_advised_is_left_to_vllm() -> None:
    steering = make()
    steering.add(Request("pooling", sampling_params=None), lambda: 0)
    steering.add(Request("embeds", prompt_token_ids=None), lambda: 0)
    steering.add(Request("too long", prompt_token_ids=[1] * 10_000), lambda: 0)
    assert not any(map(steering.knows, ("pooling", "embeds", "too long")))


def test_classes_come_from_the_gateway_or_from_vllms_priority() -> None:
    steering = make()
    steering.add(Request("online"), lambda: 0)
    steering.add(Request("by priority", priority=5), lambda: 0)
    extra = {EXTRA: {"class": int(RequestClass.OFFLINE), "age_ms": 5.0, "ttft_ms": 100.0}}
    steering.add(Request("by gateway", sampling_params=Params(extra)), lambda: 0)
    assert steering.stats()["num_waiting"][:2] == [1, 2]


def test_a_step_that_was_not_noted_is_not_committed() -> None:
    steering = make()
    steering.add(Request("a"), lambda: 0)
    steering.commit(object(), [Output("a")])  # planned before anybody steered
    assert steering.stats()["num_steps"] == 0

"""Which targets a choice attains, by when its tokens came: docs/metrics.md, computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fakes.byte_tokenizer import byte_tokenizer
from gateway.engine.classify import Profile
from gateway.generation.choice import Choice, ChoiceOptions
from gateway.generation.prepare import PreparedRequest
from gateway.generation.request_figures import RequestFigures
from gateway.metrics.metrics import ClassMetrics
from gateway.model.tokenize import Tokenizer
from schedcore.api.types import FinishReason, RequestClass, Targets, TokenDelta

TOKENIZER = Tokenizer(byte_tokenizer())
ARRIVED_AT = 100.0


def prepared(targets: Targets, num_choices: int = 1) -> PreparedRequest:
    profile = Profile(RequestClass.ONLINE, 0, targets, "", "", "", None)
    choices = [Choice(i, 0, TOKENIZER.detokenizer([], True), ChoiceOptions()) for i in range(num_choices)]
    return PreparedRequest(profile, choices, [], [[1, 2, 3]])


def outcomes(targets: Targets, *pieces: tuple[float, int]) -> dict[str, str]:
    """Of one choice whose tokens came in pieces: seconds after arrival, and how many."""
    metrics, request = ClassMetrics(), prepared(targets)
    play(RequestFigures(metrics, request, ARRIVED_AT, lambda choice, now: None), request.choices[0], pieces)
    assert set(metrics.num_by_target.values()) <= {1}
    return dict(metrics.num_by_target.keys())


def play(figures: RequestFigures, choice: Choice, pieces: Sequence[tuple[float, int]]) -> None:
    for i, (seconds, num_tokens) in enumerate(pieces):
        is_last = i == len(pieces) - 1
        choice.decode(TokenDelta(1, [65] * num_tokens, FinishReason.LENGTH if is_last else FinishReason.NONE))
        figures.received(choice, num_tokens, ARRIVED_AT + seconds)
    figures.finished(choice, ARRIVED_AT + pieces[-1][0])


def one_by_one(*seconds: float) -> list[tuple[float, int]]:
    return [(time, 1) for time in seconds]


def test_only_targets_that_there_are_are_counted() -> None:
    assert outcomes(Targets(), *one_by_one(1.0, 2.0)) == {}
    assert outcomes(Targets(ttft_ms=1.0), *one_by_one(1.0)) == {"ttft": "missed", "all": "missed"}
    assert outcomes(Targets(itl_ms=1.0), *one_by_one(1.0)) == {"itl": "attained", "all": "attained"}


def test_each_target_is_counted_by_itself_and_all_of_them_together() -> None:
    targets = Targets(ttft_ms=500.0, itl_ms=200.0, tpot_ms=100.0)
    assert outcomes(targets, *one_by_one(0.5, 0.6, 0.7)) == dict.fromkeys(("ttft", "itl", "tpot", "all"), "attained")
    found = outcomes(targets, *one_by_one(0.25, 0.5, 0.625))  # the gap is long, and nothing is late
    assert found == {"ttft": "attained", "itl": "missed", "tpot": "attained", "all": "missed"}
    found = outcomes(targets, *one_by_one(0.5, 0.625, 0.75))  # no gap is long, and each token lags more
    assert found == {"ttft": "attained", "itl": "attained", "tpot": "missed", "all": "missed"}


def test_without_a_ttft_target_tokens_are_due_from_when_the_first_came() -> None:
    targets = Targets(tpot_ms=100.0)
    assert outcomes(targets, *one_by_one(7.0, 7.0625, 7.1875))["tpot"] == "attained"
    assert outcomes(targets, *one_by_one(7.0, 7.0625, 7.25))["tpot"] == "missed"


def test_tokens_that_come_together_are_one_gap_and_due_one_by_one() -> None:
    targets = Targets(ttft_ms=1000.0, itl_ms=300.0, tpot_ms=100.0)
    # Due are 1.1, 1.2 and 1.3 s.
    assert outcomes(targets, (0.75, 1), (1.0, 3))["all"] == "attained"
    found = outcomes(targets, (0.875, 1), (1.125, 3))  # one of three
    assert (found["itl"], found["tpot"]) == ("attained", "missed")


@pytest.mark.parametrize(("num_tokens", "outcome"), [(100, "missed"), (101, "attained")])
def test_one_in_a_hundred_is_forgiven(num_tokens: int, outcome: str) -> None:
    seconds = 0.125 * np.arange(1, num_tokens + 1)
    seconds[50] += 0.0625
    targets = Targets(ttft_ms=125.0, itl_ms=150.0, tpot_ms=125.0)
    found = outcomes(targets, *one_by_one(*seconds.tolist()))
    assert found == {"ttft": "attained", "itl": outcome, "tpot": outcome, "all": outcome}


def test_what_failed_has_missed_its_targets_and_what_was_aborted_has_none() -> None:
    for has_failed in (True, False):
        metrics, request = ClassMetrics(), prepared(Targets(ttft_ms=1000.0), num_choices=2)
        figures = RequestFigures(metrics, request, ARRIVED_AT, lambda choice, now: None)
        play(figures, request.choices[0], one_by_one(0.5))
        figures.given_up(has_failed=has_failed)
        missed = {("ttft", "missed"): 1, ("all", "missed"): 1} if has_failed else {}
        assert metrics.num_by_target == {("ttft", "attained"): 1, ("all", "attained"): 1} | missed

from __future__ import annotations

import pytest

from gateway.advisories.advisory_budget import (
    BURST_SECONDS,
    FREE_REFUSALS,
    MAX_REFUSAL_SECONDS,
    REFUSALS_PER_SECOND,
    STORM_SHARE,
    AdvisoryBudget,
    AdvisoryBudgets,
    AdvisoryRefusal,
    RefusalReason,
)
from gateway.config.config import GatewayConfig


def refused(answer: AdvisoryRefusal | None) -> AdvisoryRefusal:
    assert answer is not None
    return answer


def test_a_storm_gets_its_burst_and_then_a_share_of_its_rate() -> None:
    budget = AdvisoryBudget(per_second=100.0, bytes_per_second=1e9)
    num_admitted = [0] * 5
    for i in range(50_000):
        num_admitted[i // 10_000] += budget.take(100, now=i / 10_000) is None
    assert num_admitted[0] == pytest.approx(100 * BURST_SECONDS + 100 * STORM_SHARE, abs=20)
    assert num_admitted[1:] == pytest.approx([100 * STORM_SHARE] * 4, abs=2)


def test_who_offers_little_too_much_gets_the_whole_rate() -> None:
    budget = AdvisoryBudget(per_second=100.0, bytes_per_second=1e9)
    answers = [budget.take(100, now=i / 115) for i in range(115 * 20)]
    assert sum(answer is None for answer in answers) == pytest.approx(100 * (20 + BURST_SECONDS), abs=5)


def test_after_a_storm_the_whole_rate_is_back_when_the_last_refusal_is_told() -> None:
    budget = AdvisoryBudget(per_second=100.0, bytes_per_second=1e9)
    for i in range(10_000):
        budget.take(100, now=i / 10_000)
    later = 1.0 + MAX_REFUSAL_SECONDS
    assert all(budget.take(100, now=later + i / 100) is None for i in range(500))


def test_refusals_are_told_ever_later_and_then_not_at_all() -> None:
    budget = AdvisoryBudget(per_second=1.0, bytes_per_second=1e9)
    answers = [budget.take(0, now=i / 10_000) for i in range(30_000)]
    delays = [(i, a.delay_seconds) for i, a in enumerate(answers) if a and a.delay_seconds is not None]
    told = [round(i / 10_000 + delay, 9) for i, delay in delays]
    assert told == sorted(told)
    assert max(a.delay_seconds or 0.0 for a in answers if a) <= MAX_REFUSAL_SECONDS
    assert sum(moment < 1 for moment in told) <= FREE_REFUSALS + REFUSALS_PER_SECOND + 1
    for start in range(1, 15):
        assert sum(start <= moment < start + 1 for moment in told) <= REFUSALS_PER_SECOND + 1
    assert any(a is not None and a.delay_seconds is None for a in answers)


def test_a_budget_is_exceeded_as_long_as_refusals_wait() -> None:
    budget = AdvisoryBudget(per_second=1.0, bytes_per_second=1e9)
    answers = [budget.take(0, now=10.0) for _ in range(2 + FREE_REFUSALS - 1)]
    assert not any(answer.delay_seconds for answer in answers if answer)
    assert not budget.is_exceeded(now=10.0)
    budget.take(0, now=10.0)
    delay = refused(budget.take(0, now=10.0)).delay_seconds
    assert delay
    assert budget.is_exceeded(now=10.0)
    assert not budget.is_exceeded(now=10.0 + delay)


def test_a_few_refusals_are_told_at_once() -> None:
    budget = AdvisoryBudget(per_second=1.0, bytes_per_second=1e9)
    answers = [budget.take(0, now=10.0) for _ in range(20)]
    assert {answer.delay_seconds for answer in answers if answer} == {0.0}


def test_large_bodies_use_up_the_byte_budget() -> None:
    budget = AdvisoryBudget(per_second=1000.0, bytes_per_second=1000.0)
    assert budget.take(50_000, now=0.0) is None
    refusal = refused(budget.take(10, now=0.0))
    assert (refusal.reason, refusal.retry_after_seconds) == (RefusalReason.BYTES, pytest.approx(42.0))
    assert budget.take(10, now=43.0) is None


def test_what_the_head_did_not_say_is_charged_later() -> None:
    budget = AdvisoryBudget(per_second=1000.0, bytes_per_second=1000.0)
    assert budget.take(10, now=0.0) is None
    budget.charge(100_000)
    assert refused(budget.take(10, now=0.0)).reason is RefusalReason.BYTES


def test_tenants_have_budgets_of_their_own() -> None:
    budgets = AdvisoryBudgets(GatewayConfig(max_advisories_per_second=1.0))
    while budgets.of("storm").take(0, now=0.0) is None:
        pass
    assert budgets.of("calm").take(0, now=0.0) is None

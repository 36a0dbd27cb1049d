"""The b/r solver is never worse than a dense grid or SLSQP, and answers what memory and bandwidth suggest."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.lib.oracle_partial_cache import Case, best_by_slsqp, best_on_grid, random_case
from schedcore._core import algorithms

LLAMA2_13B_ON_A100 = {  # h = 5120, L = 40, V = 32000; half of the peak rates
    "flops_per_token": 24.0 * 5120**2 * 40,
    "flops_per_pair": 4.0 * 5120 * 40,
    "flops_per_logit": 2.0 * 5120 * 32000,
    "flops_per_second": 156e12,
    "weight_bytes": 24.0 * 5120**2 * 40,
    "head_bytes": 2.0 * 5120 * 32000,
    "kv_bytes_per_token": 4.0 * 40 * 5120,
    "workspace_bytes_per_token": 40.0 * 5120,
    "bytes_per_second": 1e12,
}


def llama(lengths: list[int], memory_share: float, form: str = "roofline", max_seconds: float = 10.0) -> Case:
    """memory_share: of what full caching of all requests would take."""
    memory = memory_share * sum(lengths) * LLAMA2_13B_ON_A100["kv_bytes_per_token"]
    return Case(form, LLAMA2_13B_ON_A100, np.array(lengths, np.int32), memory, max_seconds)


def check_answer(case: Case) -> float:
    """Feasible, with the seconds that it claims. Returns b / T."""
    b, r, seconds = case.solve()
    if b == 0:
        assert (r, seconds) == (0.0, 0.0)
        return 0.0
    assert 0 <= r <= 1
    assert case.is_feasible(np.float64(b), np.float64(r))
    assert seconds == pytest.approx(float(case.seconds(np.float64(b), np.float64(r))))
    return b / seconds


def test_never_worse_than_a_dense_grid_in_1000_cases() -> None:
    rng = np.random.default_rng(1)
    solved = 0
    for _ in range(1000):
        case = random_case(rng)
        ours = check_answer(case)
        assert ours >= best_on_grid(case) * (1 - 1e-9)
        solved += ours > 0
    assert solved > 500


def test_never_worse_than_slsqp_from_20_starts() -> None:
    """bench/run/parts/algorithms.py --oracle does this for 1,000 cases."""
    rng = np.random.default_rng(2)
    for _ in range(8):
        case = random_case(rng, max_requests=32)
        assert check_answer(case) >= best_by_slsqp(case) * (1 - 1e-6)  # its constraints hold to 1e-9


def test_with_memory_for_all_nothing_is_recomputed() -> None:
    assert llama([500] * 64, memory_share=1.0).solve()[:2] == (64, 0.0)


def test_recomputation_pays_while_compute_is_idle() -> None:
    """A few short requests: their weights are read anyway, and the recomputed tokens hide behind that."""
    b, r, seconds = llama([40] * 10, memory_share=0.9).solve()
    assert b == 10
    assert 0 < r < 0.2
    assert seconds == pytest.approx(llama([40] * 10, memory_share=1.0).solve()[2], rel=0.01)


def test_recomputation_does_not_pay_when_compute_binds() -> None:
    b, r, _ = llama([1000] * 64, memory_share=0.5).solve()
    assert (b, r) == (32, 0.0)


def test_the_papers_cost_never_recomputes_either() -> None:
    """Counted in FLOPs alone, a token recomputed costs as much as a token decoded."""
    b, r, _ = llama([1000] * 64, memory_share=0.5, form="flops").solve()
    assert (b, r) == (32, 0.0)


def test_the_target_limits_the_batch() -> None:
    free = llama([1000] * 64, memory_share=1.0)
    assert 0 < replace(free, max_seconds=0.05).solve()[0] < free.solve()[0]
    assert replace(free, max_seconds=1e-6).solve() == (0, 0.0, 0.0)


def test_a_step_ends_before_the_token_of_any_of_them_is_due() -> None:
    """T + WT <= SLO for each one that is in the batch, whoever is left out."""
    case = llama([1000] * 64, memory_share=1.0)

    def solve(slacks: list[float]) -> tuple[int, float]:
        answer = algorithms.solve_partial_cache(
            case.core_costs(), case.lengths, case.memory_bytes, 10.0, np.array(slacks)
        )
        return answer[0], answer[2]

    assert solve([10.0] * 64)[0] == 64
    num, seconds = solve([0.05] * 64)
    assert 0 < num < 64
    assert seconds <= 0.05
    assert solve([10.0] * 20 + [1e-6] + [10.0] * 43)[0] == 20
    with pytest.raises(ValueError, match="one entry per length"):
        solve([1.0])


def test_without_recomputation_the_batch_is_what_memory_holds() -> None:
    case = llama([40] * 10, memory_share=0.9)
    assert case.solve()[0] == 10
    answer = algorithms.solve_partial_cache(
        case.core_costs(), case.lengths, case.memory_bytes, case.max_seconds, max_ratio=0.0
    )
    assert answer[:2] == (9, 0.0)


def test_a_request_that_cannot_fit_even_recomputed_gets_no_batch() -> None:
    assert llama([1000], memory_share=0.1).solve()[0] == 0
    assert llama([1000], memory_share=0.26).solve()[:1] == (1,)


def test_nothing_waits() -> None:
    assert llama([], memory_share=1.0).solve() == (0, 0.0, 0.0)


def test_costs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="flops_per_second"):
        algorithms.StepCosts("flops", **(LLAMA2_13B_ON_A100 | {"flops_per_second": 0.0}))

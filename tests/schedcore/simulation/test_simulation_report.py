"""What a simulated run says of itself: definitions of docs/metrics.md on runs that can be computed by hand."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from schedcore._core import SimulatedOutcome, simulation
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import find_cost, linear_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.plots import save_plot
from schedcore.simulation.report import itl_distribution_ms, make_report
from schedcore.simulation.simulator import SimulationResult, simulate
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

MOONCAKE = Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv"
SIMPLE = linear_cost("by hand", 10.0, 1.0, 0.0, 0.0, 0.0)
ENGINE = SimulatedEngine(model=model_shape("qwen3-0.6b"), cost=SIMPLE, memory_bytes=8 * 2**30)


def unrelated(arrival_s: Any, inputs: Any, outputs: Any) -> Workload:
    return make_workload(arrival_s, Prompts.unrelated(inputs), outputs)


def test_times_of_two_requests() -> None:
    # Tokens of the first at 14, 27, 39 ms, of the second, which arrives at 5 ms, at 27 and 39 ms.
    report = make_report(simulate(unrelated([0.0, 0.005], [4, 2], [3, 2]), ENGINE))
    online = report.of(RequestClass.ONLINE)
    assert online.ttft_ms is not None
    assert online.tpot_ms is not None
    assert online.e2e_ms is not None
    assert online.queue_ms is not None
    assert online.itl_ms is not None
    assert (online.ttft_ms.p50, online.ttft_ms.max) == pytest.approx((18, 22))
    assert online.ttft_ms.p90 == pytest.approx(14 + 0.9 * 8)
    assert (online.tpot_ms.mean, online.tpot_ms.max) == pytest.approx(((12.5 + 12) / 2, 12.5))
    assert online.e2e_ms.mean == pytest.approx((39 + 34) / 2)
    assert online.queue_ms.max == pytest.approx(9)
    assert online.itl_ms.max == pytest.approx(13)
    assert online.itl_ms.p50 == pytest.approx(12, rel=0.006)
    assert online.requests_per_second == pytest.approx(2 / 0.039)
    assert online.output_tokens_per_second == pytest.approx(5 / 0.039)
    assert online.prompt_tokens_per_second == pytest.approx(6 / 0.039)
    assert (report.busy_ratio, report.mean_step_ms) == pytest.approx((1.0, 13.0))
    assert (report.num_steps, report.mean_seqs, report.mean_tokens) == (3, 5 / 3, 3.0)
    assert online.slo_attainment_ratio is None


def test_attainment_wants_all_targets_and_counts_a_refused_request_as_missed() -> None:
    workload = unrelated([0.0, 10.0, 20.0, 30.0], [4, 90, 4, 50_000], [2, 2, 2, 2])
    # TTFT 14, 100 and 14 ms; the gap is 11 ms. The third has a target that no gap meets.
    workload = replace(workload.with_targets(50.0, 12.0, 12.0), itl_target_ms=np.array([12.0, 12.0, 10.0, 12.0]))
    report = make_report(simulate(workload, ENGINE))
    online = report.of(RequestClass.ONLINE)
    assert online.ttft_attainment_ratio == 2 / 4
    assert online.itl_attainment_ratio == 2 / 4
    assert online.tpot_attainment_ratio == 2 / 4  # the second's second token was due at 50 + 12 ms
    assert online.slo_attainment_ratio == 1 / 4
    assert online.goodput == pytest.approx(1 / report.duration_s)
    assert (online.num_requests, online.num_finished, online.num_refused) == (4, 3, 1)
    # Late: both tokens of the second. The third's second token is due at 50 + 12 ms and comes at 25.
    assert online.on_time_token_ratio == pytest.approx(1 - 2 / 6)


@pytest.mark.parametrize(("num_outputs", "attained"), [(100, 0.5), (101, 1.0)])
def test_one_gap_in_a_hundred_may_exceed_the_target(num_outputs: int, attained: float) -> None:
    # A second prompt makes one gap of the first request long. It needs 100 gaps to be forgiven.
    workload = unrelated([0.0, 0.1], [4, 500], [num_outputs, 1]).with_targets(10_000.0, 100.0)
    online = make_report(simulate(workload, ENGINE)).of(RequestClass.ONLINE)
    assert online.itl_attainment_ratio == attained


@pytest.mark.parametrize(("num_outputs", "attained"), [(100, 0.5), (101, 1.0)])
def test_one_token_in_a_hundred_may_come_after_its_cumulative_deadline(num_outputs: int, attained: float) -> None:
    # Due every 20 ms, and so in time, but for one that a second prompt makes late. It needs 100 gaps to be forgiven.
    workload = unrelated([0.0, 0.02], [4, 20], [num_outputs, 1]).with_targets(None, None, 20.0)
    online = make_report(simulate(workload, ENGINE)).of(RequestClass.ONLINE)
    assert online.tpot_attainment_ratio == attained
    assert online.itl_attainment_ratio is None


def test_who_runs_ahead_attains_a_tpot_target_that_it_misses_between_tokens() -> None:
    # Nine tokens in 102 ms, then one behind another's prompt of 500: a gap of half a second.
    workload = unrelated([0.0, 0.1], [4, 500], [20, 1])
    for targets, attained in (((600.0, 50.0, None), 0.5), ((600.0, None, 50.0), 1.0)):
        online = make_report(simulate(workload.with_targets(*targets), ENGINE)).of(RequestClass.ONLINE)
        assert online.slo_attainment_ratio == attained


def test_classes_are_reported_apart() -> None:
    online = unrelated([0.0], [4], [2]).with_targets(20, 20)
    offline = unrelated([1.0, 1.0], [4, 4], [5, 1]).with_class(RequestClass.OFFLINE)
    report = make_report(simulate(online.merged(offline), ENGINE))
    assert [c.request_class for c in report.classes] == ["online", "offline"]
    assert report.of(RequestClass.ONLINE).slo_attainment_ratio == 1.0
    assert report.of(RequestClass.OFFLINE).slo_attainment_ratio is None
    assert report.of(RequestClass.OFFLINE).output_tokens_per_second == pytest.approx(6 / report.duration_s)
    with pytest.raises(KeyError):
        report.of(RequestClass.ADVISORY)


def test_percentiles_from_the_histogram_are_within_a_percent() -> None:
    gaps = np.random.default_rng(0).lognormal(-4.0, 1.0, 20_000)
    bins = np.floor(np.log(gaps / simulation.ITL_SMALLEST_S) / np.log(simulation.ITL_GROWTH)).astype(int) + 1
    distribution = itl_distribution_ms(np.bincount(bins, minlength=2000), float(gaps.max()))
    assert distribution is not None
    exact = (1000 * np.percentile(gaps, (50, 90, 95, 99))).tolist()
    assert [distribution.p50, distribution.p90, distribution.p95, distribution.p99] == pytest.approx(exact, rel=0.01)
    assert distribution.mean == pytest.approx(1000 * gaps.mean(), rel=0.01)
    assert distribution.max == 1000 * gaps.max()


def test_the_histogram_holds_every_gap_between_tokens() -> None:
    result = simulate(read_trace(MOONCAKE).workload(jitter_s=3.0), ENGINE, keep_token_times=True)
    gaps = np.concatenate(
        [np.diff(result.token_time_s[result.token_request == request]) for request in range(len(result.workload))]
    )
    assert result.itl_histograms[RequestClass.ONLINE].sum() == gaps.size
    measured = make_report(result).of(RequestClass.ONLINE).itl_ms
    assert measured is not None
    assert measured.p99 == pytest.approx(1000 * np.percentile(gaps, 99, method="inverted_cdf"), rel=0.01)
    assert measured.max == pytest.approx(1000 * gaps.max())


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_server_with_equal_jobs_waits_as_the_m_d_1_queue_does(load: float) -> None:
    """Pollaczek-Khinchine: mean wait = load x service / (2 (1 - load))."""
    service_s = 0.026  # one prompt of 16 tokens, one answer token
    n = 100_000
    workload = unrelated(ArrivalProcess(load / service_s).times(n, seed=3), np.full(n, 16), np.ones(n))
    engine = ENGINE.with_policy("fcfs", max_num_seqs=1, enable_prefix_caching=False)
    report = make_report(simulate(workload, engine))
    queue = report.of(RequestClass.ONLINE).queue_ms
    assert queue is not None
    assert queue.mean == pytest.approx(1000 * load * service_s / (2 * (1 - load)), rel=0.04)
    assert report.busy_ratio == pytest.approx(load, rel=0.02)


def test_every_prompt_token_is_computed_once_or_found_in_the_cache() -> None:
    result = simulate(read_trace(MOONCAKE).workload(), ENGINE)
    assert result.num_preemptions == 0
    computed = int(result.workload.input_tokens.sum()) - int(result.records.num_cached_tokens.sum())
    decoded = int(result.workload.output_tokens.sum()) - len(result.workload)
    assert result.num_scheduled_tokens == computed + decoded
    assert 0.2 < make_report(result).of(RequestClass.ONLINE).cached_prompt_ratio < 0.9


def report_bytes() -> bytes:
    shape = model_shape("opt-13b")
    engine = SimulatedEngine(model=shape, cost=find_cost(shape, "a100"), memory_bytes=40 * 2**30, max_model_len=10_000)
    workload = read_trace(MOONCAKE).workload(jitter_s=3.0, seed=4).with_targets(1000, 200)
    return make_report(simulate(workload, engine)).to_json()


def test_the_same_inputs_give_the_same_bytes() -> None:
    first = report_bytes()
    assert first == report_bytes()
    assert msgspec.json.decode(first)["is_simulated"] is True
    assert b"opt-13b scaled from llama-2-7b-hf_a100_tp1" in first


def test_a_workload_without_requests_has_no_report() -> None:
    with pytest.raises(ValueError, match="no requests"):
        make_report(simulate(unrelated([], [], []), ENGINE))


def ends_of(result: SimulationResult) -> Any:
    return result.records.last_token_s[result.records.outcome == SimulatedOutcome.FINISHED]


@pytest.mark.parametrize("horizon_s", [0.001, 0.03, 3.0, 17.3, 1e6])
def test_a_run_with_a_horizon_is_the_beginning_of_the_whole_run(horizon_s: float) -> None:
    rng = np.random.default_rng(5)
    workload = unrelated(np.sort(rng.uniform(0, 20, 80)), rng.integers(1, 400, 80), rng.integers(1, 60, 80))
    whole = simulate(workload, ENGINE, keep_token_times=True)
    cut = simulate(workload, ENGINE, horizon_s=horizon_s, keep_token_times=True)
    num_tokens = cut.token_time_s.size
    assert cut.token_time_s.tolist() == whole.token_time_s[:num_tokens].tolist()
    assert np.all(cut.token_time_s[cut.token_time_s < cut.end_s] < horizon_s)  # the last step alone may pass it
    assert num_tokens >= int((whole.token_time_s < horizon_s).sum())
    num_ended = int((whole.records.last_token_s <= cut.end_s).sum())
    assert ends_of(cut).size == num_ended
    assert int((cut.records.outcome == SimulatedOutcome.PENDING).sum()) == len(cut.workload) - num_ended


def test_a_request_that_the_horizon_cuts_off_counts_once_it_has_missed_a_target() -> None:
    # First tokens at 14 and 26 ms; the third waits for the only two rows.
    workload = unrelated([0.0, 0.001, 0.002], [4, 1, 1], [500, 500, 1]).with_targets(20.0, None)
    engine = ENGINE.with_policy("fcfs", max_num_seqs=2)
    early = make_report(simulate(workload, engine, horizon_s=0.015)).of(RequestClass.ONLINE)
    late = make_report(simulate(workload, engine, horizon_s=1.0)).of(RequestClass.ONLINE)
    assert (early.num_pending, late.num_pending) == (3, 3)
    assert late.slo_attainment_ratio == 0.0  # two have missed, the first may still attain
    whole = make_report(simulate(workload, engine)).of(RequestClass.ONLINE)
    assert whole.slo_attainment_ratio == pytest.approx(1 / 3)


def test_a_horizon_before_the_start_is_refused() -> None:
    with pytest.raises(ValueError, match="horizon"):
        simulate(unrelated([0.0], [1], [1]), ENGINE, horizon_s=0.0)


def test_progress_is_reported_while_the_run_goes_on() -> None:
    seen: list[tuple[int, int]] = []
    n = 300
    simulate(
        unrelated(np.arange(n) * 1.0, np.full(n, 4), np.full(n, 200)), ENGINE, on_progress=lambda *p: seen.append(p)
    )
    assert seen
    assert seen == sorted(seen)
    assert {total for _, total in seen} == {n}


def results() -> dict[str, SimulationResult]:
    workload = unrelated([0.0, 0.005, 1.0], [4, 2, 9], [3, 2, 5])
    return {policy: simulate(workload, ENGINE.with_policy(policy)) for policy in ("fcfs", "priority")}


def test_a_plot_names_the_cost_model_and_is_the_same_again(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    digests = set()
    for name in ("one.svg", "two.svg"):
        save_plot(results(), tmp_path / name)
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1
    save_plot(results(), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_a_plot_of_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\.svg"):
        save_plot(results(), tmp_path / "plot.txt")

"""Planning: the peak, the least resources that hold it, and the day on them, against brute force and sums by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from schedcore._core import SimulatedOutcome
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import linear_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import model_shape
from schedcore.simulation.planning.day import interval_for, simulate_day
from schedcore.simulation.planning.fleet import Traffic, run_engines
from schedcore.simulation.planning.hardware import GIB, Hardware, find_hardware
from schedcore.simulation.planning.offline_supply import OfflineSupply, probe_rate, simulate_beside
from schedcore.simulation.planning.peak import new_prompt_tokens, offered_work_s, peak_start_s
from schedcore.simulation.planning.planner import PeakSearch, PlanOptions, attainment, least_number
from schedcore.simulation.simulator import Progress, simulate
from schedcore.simulation.workloads.token_ids import Prompts, StreamKind, stream_id, stream_tokens
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

MOONCAKE = Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv"
SMALL, LARGE, PAIR = Hardware("Small", 1, 8 * GIB), Hardware("Large", 1, 16 * GIB), Hardware("Small", 2, 8 * GIB)
SPEED = {"Small": 1.0, "Large": 4.0}


def engine_on(hardware: Hardware) -> SimulatedEngine:
    """10 ms per step and 1 ms per token, divided by the speed of the hardware."""
    speed = SPEED[hardware.gpu] * hardware.num_gpus
    cost = linear_cost(hardware.name, 10.0 / speed, 1.0 / speed, 0.0, 0.0, 0.0)
    model = model_shape("qwen3-0.6b")
    return SimulatedEngine(model=model, cost=cost, memory_bytes=hardware.memory_bytes, policy="priority")


def unrelated(arrival_s: Any, inputs: Any, outputs: Any) -> Workload:
    return make_workload(arrival_s, Prompts.unrelated(inputs), outputs)


def random_traffic(num_requests: int = 300, duration_s: float = 40.0, seed: int = 0) -> Traffic:
    """With a peak in the middle; every session has three requests or so."""
    rng = np.random.default_rng(seed)
    arrivals = np.sort(duration_s * rng.beta(3, 3, num_requests))
    workload = unrelated(arrivals, rng.integers(5, 60, num_requests), rng.integers(2, 20, num_requests))
    return Traffic.of(workload.with_targets(200.0, 60.0), rng.integers(0, num_requests // 3, num_requests))


def silent(_: str) -> Progress:
    return lambda done, total: None


# ---- the least number ----


@pytest.mark.parametrize("is_limit_known", [False, True])
def test_the_least_number_equals_that_of_trying_all(is_limit_known: bool) -> None:
    for limit in range(1, 40):
        for threshold in range(1, limit + (1 if is_limit_known else 3)):
            calls: list[int] = []

            def is_enough(n: int, threshold: int = threshold, calls: list[int] = calls) -> bool:
                calls.append(n)
                return n >= threshold

            found = least_number(is_enough, limit, is_limit_enough=is_limit_known)
            assert found == next((n for n in range(1, limit + 1) if n >= threshold), None)
            assert len(calls) == len(set(calls)) <= 2 * np.log2(limit) + 2
            assert set(calls) <= set(range(1, limit + 1))


# ---- the peak ----


def test_the_peak_is_the_window_with_most_work() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        arrivals, work = rng.uniform(0, 100, 60).round(1), rng.gamma(0.3, 1.0, 60)
        sums = [work[(arrivals >= t) & (arrivals < t + 7.0)].sum() for t in arrivals]
        start = peak_start_s(arrivals, work, 7.0)
        assert work[(arrivals >= start) & (arrivals < start + 7.0)].sum() == pytest.approx(max(sums))


def test_few_long_prompts_are_a_peak_and_many_short_ones_are_not() -> None:
    workload = unrelated([*np.linspace(0, 1, 20), 50.0, 50.1], [10] * 20 + [4000] * 2, [2] * 22)
    work = offered_work_s(workload, engine_on(SMALL).cost)
    assert peak_start_s(workload.arrival_s, work, 5.0) == 50.0


def test_offered_work_is_what_the_tokens_cost_without_the_steps_fixed_time() -> None:
    cost = linear_cost("terms", 10.0, 0.5, 0.1, 0.001, 0.0002)
    work_ms = 1000 * offered_work_s(unrelated([0.0, 1.0], [100, 7], [5, 1]), cost)
    first = 0.5 * 100 + 0.0002 * 100 * 50 + 4 * (0.5 + 0.1 + 0.001 * 102.5)
    assert work_ms.tolist() == pytest.approx([first, 0.5 * 7 + 0.0002 * 7 * 3.5])


def shared_prefix(a: Any, b: Any) -> int:
    n = min(a.size, b.size)
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if differs.size else n


def test_new_prompt_tokens_are_those_that_nothing_earlier_begins_with() -> None:
    trace = read_trace(MOONCAKE)
    without_hashes = replace(trace, prefix_hashes=[[] for _ in range(len(trace))])
    for workload in (trace.workload(), without_hashes.workload()):
        found = new_prompt_tokens(workload)
        texts = []
        for i, num_outputs in enumerate(workload.output_tokens.tolist()):
            prompt = workload.prompts.prompt_token_ids(i)
            assert found[i] == max(1, prompt.size - max((shared_prefix(prompt, text) for text in texts), default=0))
            answer = stream_tokens(int(workload.prompts.continuations[i]), prompt.size, prompt.size + num_outputs)
            texts.append(np.concatenate([prompt, answer]))


# ---- several engines ----


def test_every_request_is_on_one_engine_with_the_rest_of_its_session() -> None:
    traffic = random_traffic()
    for num_engines in (1, 2, 3, 7):
        shares = [traffic.share(i, num_engines) for i in range(num_engines)]
        assert sum(len(share) for share in shares) == len(traffic)
        assert sorted(t for share in shares for t in share.arrival_s) == sorted(traffic.workload.arrival_s)
    first_of_session = [traffic.workload.arrival_s[traffic.session == s].min() for s in np.unique(traffic.session)]
    assert first_of_session == sorted(first_of_session)  # so that sessions take turns


def test_a_cut_keeps_distances_and_engines() -> None:
    traffic = random_traffic()
    cut = traffic.between(10.0, 15.0)
    chosen = (traffic.workload.arrival_s >= 10.0) & (traffic.workload.arrival_s < 15.0)
    assert cut.workload.arrival_s.tolist() == (traffic.workload.arrival_s[chosen] - 10.0).tolist()
    assert cut.session.tolist() == traffic.session[chosen].tolist()


def test_requests_that_follow_others_are_no_traffic() -> None:
    workload = replace(unrelated([0.0, 1.0], [1, 1], [1, 1]), follows=np.array([-1, 0], np.int32))
    with pytest.raises(ValueError, match="follow"):
        Traffic.of(workload, np.arange(2))


def test_engines_give_their_results_in_order_and_their_failures_at_once() -> None:
    sums: list[tuple[int, int]] = []

    def run(i: int, report: Progress) -> int:
        report(i, 10)
        return i * i

    assert run_engines(5, run, lambda *p: sums.append(p), num_threads=2) == [0, 1, 4, 9, 16]
    assert max(done for done, _ in sums) == 10

    def fail(i: int, report: Progress) -> int:
        while i != 3:
            report(0, 1)  # until the failure of the other stops it
        raise ValueError("no room")

    with pytest.raises(ValueError, match="no room"):
        run_engines(4, fail, num_threads=4)


# ---- step 1 ----


def attained_by(traffic: Traffic, hardware: Hardware, num_engines: int, counted: Any) -> float:
    parts = [traffic.session % num_engines == i for i in range(num_engines)]
    results = [simulate(traffic.workload.select(part), engine_on(hardware)) for part in parts if part.any()]
    return attainment(results, [counted[part] for part in parts if part.any()]).slo_ratio


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_least_engines_are_those_that_trying_all_numbers_finds(seed: int) -> None:
    traffic = random_traffic(seed=seed)
    options = PlanOptions(window_s=1000.0, warmup_s=0.0, max_gpus=40)
    plan, choice = PeakSearch(traffic, [SMALL], engine_on, options).run(silent)
    everything = np.ones(len(traffic), bool)
    by_number = [attained_by(traffic, SMALL, n, everything) for n in range(1, 12)]
    least = next(n for n, ratio in enumerate(by_number, 1) if ratio >= 0.9)
    assert choice is not None
    assert choice.num_engines == least > 1
    for trial in plan.trials:
        if trial.num_engines <= len(by_number):
            assert trial.attainment.slo_ratio == pytest.approx(by_number[trial.num_engines - 1])


def test_a_trivial_load_needs_one_engine_of_the_smallest() -> None:
    traffic = Traffic.of(unrelated(np.arange(20.0), [10] * 20, [3] * 20).with_targets(100.0, 50.0), np.arange(20))
    plan, choice = PeakSearch(traffic, [SMALL, LARGE, PAIR], engine_on, PlanOptions()).run(silent)
    assert choice is not None
    assert (choice.hardware, choice.num_engines) == (SMALL, 1)
    assert len(plan.trials) == 1  # nothing else could cost less
    assert plan.least is not None
    assert plan.least.attainment.slo_ratio == 1.0


def test_only_requests_of_the_window_count_and_those_before_it_are_in_its_way() -> None:
    """The window is the heaviest 10 s; what arrives at 4 s delays its first requests."""
    arrivals = [4.0, *np.linspace(5.0, 14.9, 30)]
    traffic = Traffic.of(
        unrelated([0.0, *arrivals], [10, 900, *[100] * 30], [1] * 32).with_targets(150.0, None), np.arange(32)
    )
    options = PlanOptions(window_s=10.0, warmup_s=5.0, attainment=1.0, max_gpus=1)
    search = PeakSearch(traffic, [SMALL], engine_on, options)
    assert search.window.start_s == pytest.approx(4.0)
    assert search.window.num_requests == 28  # of 32; the last three arrive after it
    alone = PeakSearch(traffic, [SMALL], engine_on, replace(options, attainment=0.5)).run(silent)[0]
    assert alone.trials[0].attainment.slo_ratio < 1.0


def test_hardware_that_costs_more_than_the_plan_so_far_is_not_run() -> None:
    traffic = random_traffic()
    options = PlanOptions(window_s=1000.0, warmup_s=0.0)
    by_count, choice = PeakSearch(traffic, [SMALL, LARGE], engine_on, options).run(silent)
    assert choice is not None
    assert choice.hardware == LARGE
    dear = replace(options, price={"Large": 100.0})
    by_price, choice = PeakSearch(traffic, [SMALL, LARGE], engine_on, dear).run(silent)
    assert choice is not None
    assert choice.hardware == SMALL
    assert {trial.hardware for trial in by_price.trials} == {SMALL.name}
    assert [rejection.hardware for rejection in by_price.rejections] == [LARGE.name]
    assert by_count.least is not None
    assert by_price.least is not None
    assert by_price.least.cost == by_price.least.num_gpus > by_count.least.num_gpus


def test_targets_that_no_request_can_meet_alone_are_rejected_without_trying_numbers() -> None:
    workload = unrelated(np.arange(30.0), [100] * 30, [5] * 30).with_targets(100.0, None)  # a prompt takes 110 ms
    plan, choice = PeakSearch(Traffic.of(workload, np.arange(30)), [SMALL], engine_on, PlanOptions()).run(silent)
    assert choice is None
    assert plan.least is None
    assert not plan.trials
    assert "too slow in any number" in plan.rejections[0].reason


def test_too_few_gpus_and_too_little_memory_are_said() -> None:
    def no_room(hardware: Hardware) -> SimulatedEngine:
        if hardware == LARGE:
            raise ValueError("weights do not fit")
        return engine_on(hardware)

    options = PlanOptions(window_s=1000.0, warmup_s=0.0, max_gpus=1)
    plan, choice = PeakSearch(random_traffic(), [SMALL, LARGE, PAIR], no_room, options).run(silent)
    assert choice is None
    reasons = {rejection.hardware: rejection.reason for rejection in plan.rejections}
    assert reasons[LARGE.name] == "weights do not fit"
    assert "1 engine is not enough" in reasons[SMALL.name]
    assert "exceeds the limit" in reasons[PAIR.name]


def test_without_targets_there_is_nothing_to_hold() -> None:
    traffic = Traffic.of(unrelated([0.0], [1], [1]), np.arange(1))
    with pytest.raises(ValueError, match="targets"):
        PeakSearch(traffic, [SMALL], engine_on, PlanOptions())


@pytest.mark.parametrize("wrong", [{"attainment": 0.0}, {"attainment": 1.1}, {"window_s": 0.0}, {"price": {"A": 0.0}}])
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must"):
        PlanOptions(**wrong)


# ---- hardware ----


def test_shipped_hardware_comes_smallest_first() -> None:
    found = find_hardware()
    assert found[0] == Hardware("A100", 1, 40 * GIB)
    assert [h.num_gpus for h in found] == sorted(h.num_gpus for h in found)
    assert {(h.gpu, h.num_gpus) for h in found} >= {("A100", 1), ("A100", 4), ("H100", 1), ("H100", 4)}
    assert {h.gpu for h in find_hardware("h100")} == {"H100"}
    assert {h.gpu_memory_bytes for h in find_hardware("a100", [24 * GIB])} == {24 * GIB}
    assert found[1].name == "A100 80G"
    with pytest.raises(ValueError, match="A100"):
        find_hardware("tpu")
    with pytest.raises(ValueError, match="memory"):
        find_hardware("mine.json")


# ---- offline work ----


def documents(num_documents: int = 5, questions: int = 4) -> Workload:
    """Prompts of two blocks of their document and a question."""
    runs, streams = [], []
    for i in range(num_documents * questions):
        blocks = [stream_id(StreamKind.BLOCK, 2 * (i // questions) + j) for j in range(2)]
        streams.append(stream_id(StreamKind.REQUEST, i))
        runs.append([(blocks[0], 32), (blocks[1], 64), (streams[-1], 70)])
    return make_workload(np.zeros(len(runs)), Prompts.from_runs(runs, streams), np.full(len(runs), 3))


def test_compact_prompts_share_what_they_shared() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        runs: list[list[tuple[int, int]]] = []
        for i in range(12):  # a random trie of blocks, ends that differ, tails of their own
            path = [(stream_id(StreamKind.BLOCK, 0), 8)]
            while len(path) < 6 and rng.random() < 0.8:
                number = (path[-1][0] * 3 + int(rng.integers(0, 2)) + 1) % 2**40
                path.append((stream_id(StreamKind.BLOCK, number), path[-1][1] + int(rng.choice([8, 8, 8, 5]))))
            runs.append([*path, (stream_id(StreamKind.REQUEST, i), path[-1][1] + 3)])
        before = Prompts.from_runs(runs, [stream_id(StreamKind.REQUEST, i) for i in range(12)])
        after = before.compact()
        assert after.input_tokens.tolist() == before.input_tokens.tolist()
        assert after.streams.size <= before.streams.size
        old, new = ([prompts.prompt_token_ids(i) for i in range(12)] for prompts in (before, after))
        for i in range(12):
            for j in range(i):
                assert shared_prefix(old[i], old[j]) == shared_prefix(new[i], new[j])
    assert documents().prompts.compact().streams.size == 2 * 20  # one for the document, one for the question


def test_a_pool_stays_full_and_never_grows() -> None:
    supply = OfflineSupply.of(documents(), pool_size=50)
    assert supply.pool_size == 51  # shares no divisor with 20
    result = simulate_beside(None, supply, engine_on(SMALL), 30.0, rate=1.0)
    records = result.records
    is_finished = records.outcome == SimulatedOutcome.FINISHED
    arrivals, ends = np.sort(records.arrival_s), np.sort(records.last_token_s[is_finished])
    for time in np.linspace(0.0, 29.9, 50):
        assert (arrivals <= time).sum() - (ends <= time).sum() == supply.pool_size


@pytest.mark.parametrize("policy", ["priority", "fcfs"])
def test_all_rows_of_a_trace_have_their_turn(policy: str) -> None:
    rng = np.random.default_rng(2)
    source = unrelated(np.zeros(21), rng.integers(5, 200, 21), rng.integers(1, 30, 21))
    supply = OfflineSupply.of(source, pool_size=100)
    engine = engine_on(LARGE).with_policy(policy, max_num_seqs=8)
    result = simulate_beside(None, supply, engine, 120.0, rate=1.0)
    finished = np.flatnonzero(result.records.outcome == SimulatedOutcome.FINISHED)
    counts = np.bincount(finished % 21, minlength=21)
    assert counts.min() > 20
    assert counts.max() - counts.min() <= 0.05 * counts.max() + 3


def test_passes_through_the_trace_share_nothing_and_documents_within_one_do() -> None:
    prompts = OfflineSupply.of(documents(), pool_size=50).workload(45).prompts
    texts = [prompts.prompt_token_ids(i) for i in range(45)]
    assert shared_prefix(texts[0], texts[1]) == 64
    assert shared_prefix(texts[0], texts[20]) == 0
    assert shared_prefix(texts[20], texts[21]) == 64


def test_offline_requests_that_fit_no_engine_are_said_instead_of_tried_for_ever() -> None:
    supply = OfflineSupply.of(unrelated([0.0], [39_000], [10]))
    small = replace(engine_on(SMALL), memory_bytes=2 * GIB)
    with pytest.raises(ValueError, match="fits the memory"):
        simulate_beside(None, supply, small, 10.0, rate=1.0)
    with pytest.raises(ValueError, match="no requests"):
        OfflineSupply.of(unrelated([], [], []))


# ---- step 2 ----


def test_offline_throughput_is_what_the_steps_allow() -> None:
    """One request at a time: 40 prompt tokens in 50 ms, then two decodes of 11 ms."""
    traffic = Traffic.of(unrelated([0.0, 100.0], [1, 1], [1, 1]).with_targets(1000.0, None), np.arange(2))
    supply = OfflineSupply.of(unrelated([0.0] * 3, [40] * 3, [3] * 3))
    engine = engine_on(SMALL).with_policy("priority", max_num_seqs=1)
    assert probe_rate(supply, engine) == pytest.approx(1 / 0.072, rel=0.001)
    day = simulate_day(traffic, engine, 1, supply)
    assert day.offline_requests_per_hour == pytest.approx(3600 / 0.072, rel=0.002)
    assert day.offline_prompt_tokens_per_second == pytest.approx(40 / 0.072, rel=0.002)
    assert day.offline_output_tokens_per_second == pytest.approx(3 / 0.072, rel=0.002)
    assert day.busy_ratio == pytest.approx(1.0, abs=0.001)
    assert day.online_attainment_ratio == 1.0  # of the first; the end of the day leaves the last one open


def test_intervals_add_up_to_the_day() -> None:
    traffic = random_traffic()
    day = simulate_day(traffic, engine_on(LARGE), 2, OfflineSupply.of(documents()))
    assert [interval_for(s) for s in (40.0, 3500.0, 86_400.0, 0.5)] == [1.0, 300.0, 3600.0, 0.5]
    seconds = np.array([i.end_s - i.start_s for i in day.intervals])
    assert seconds.sum() == pytest.approx(traffic.duration_s)
    online = np.array([i.online_requests_per_second for i in day.intervals])
    assert online @ seconds == pytest.approx(len(traffic))
    offline = np.array([i.offline_requests_per_hour for i in day.intervals])
    assert offline @ seconds / traffic.duration_s == pytest.approx(day.offline_requests_per_hour)
    prompts = np.array([i.offline_prompt_tokens_per_second for i in day.intervals])
    assert prompts @ seconds / traffic.duration_s == pytest.approx(day.offline_prompt_tokens_per_second)


def test_a_day_without_offline_work_attains_what_the_plain_simulation_does() -> None:
    traffic = random_traffic()
    day = simulate_day(traffic, engine_on(LARGE), 1, None)
    result = simulate(traffic.workload, engine_on(LARGE))
    whole = attainment([result], [np.ones(len(traffic), bool)])
    assert day.online_attainment_ratio == pytest.approx(whole.slo_ratio, abs=2 / len(traffic))
    assert day.offline_requests_per_hour == 0.0


def test_some_engines_stand_for_all() -> None:
    traffic, engine, supply = random_traffic(), engine_on(LARGE), OfflineSupply.of(documents())
    every, some = (simulate_day(traffic, engine, 4, supply, max_simulated=n) for n in (None, 2))
    assert (every.num_simulated_engines, some.num_simulated_engines) == (4, 2)
    assert some.offline_requests_per_hour == pytest.approx(every.offline_requests_per_hour, rel=0.1)
    assert some.num_online == every.num_online == len(traffic)


def test_the_same_plan_again() -> None:
    traffic, engine, supply = random_traffic(), engine_on(LARGE), OfflineSupply.of(documents())
    days = [simulate_day(traffic, engine, 2, supply, num_threads=threads) for threads in (1, 2)]
    assert days[0] == days[1]


def test_a_trace_without_a_day_is_refused() -> None:
    traffic = Traffic.of(unrelated([5.0, 5.0], [1, 1], [1, 1]).with_targets(100.0, None), np.arange(2))
    with pytest.raises(ValueError, match="at once"):
        simulate_day(traffic, engine_on(SMALL), 1, None)
    assert int(traffic.workload.request_class[0]) == RequestClass.ONLINE

"""The simulation loop: exact times, nothing lost, the same bytes again, and the same as its twin in Python."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from fakes.simulation_twin import run_twin
from schedcore._core import Estimates, SchedulerConfig, SimulatedOutcome, simulation
from schedcore.api.types import RequestClass
from schedcore.simulation.cost_model import linear_cost
from schedcore.simulation.simulator import request_columns
from schedcore.simulation.workloads.token_ids import Prompts, StreamKind, stream_id
from schedcore.simulation.workloads.workload import Workload, make_workload, merge

# 10 ms per step and 1 ms per token, so that times can be added up by hand.
SIMPLE = linear_cost("by hand", 10.0, 1.0, 0.0, 0.0, 0.0)
BLOCKS = 64


def config(num_blocks: int = BLOCKS, **fields: Any) -> SchedulerConfig:
    defaults = {"num_layers": 4, "block_size": 4, "max_model_len": 128, "max_num_waiting": 1000}
    return SchedulerConfig(num_units=2 * num_blocks, **{**defaults, **fields})


def run(workload: Workload, settings: SchedulerConfig, cost: Any = SIMPLE, **options: Any) -> simulation.SimulationLoop:
    loop = simulation.SimulationLoop(settings, Estimates(latency=cost.to_core()), request_columns(workload), **options)
    while loop.run(7):
        loop.check_invariants()
    loop.check_invariants()
    return loop


def token_times_ms(loop: simulation.SimulationLoop, request: int) -> list[float]:
    requests, times = loop.token_times()
    return (1000 * times[requests == request]).tolist()


def unrelated(arrival_s: list[float], inputs: list[int], outputs: list[int], **columns: Any) -> Workload:
    return make_workload(arrival_s, Prompts.unrelated(inputs), outputs, **columns)


def test_a_prompt_costs_its_tokens_and_each_decode_one() -> None:
    loop = run(unrelated([0.0], [4], [3]), config(), keep_token_times=True)
    assert token_times_ms(loop, 0) == pytest.approx([14, 25, 36])
    assert loop.totals()["num_steps"] == 3
    assert loop.totals()["busy_s"] == pytest.approx(0.036)


def test_a_request_that_arrives_during_a_step_is_seen_after_it() -> None:
    loop = run(unrelated([0.0, 0.005], [4, 2], [3, 2]), config(), keep_token_times=True)
    assert token_times_ms(loop, 0) == pytest.approx([14, 27, 39])
    assert token_times_ms(loop, 1) == pytest.approx([27, 39])
    records = loop.records()
    assert records["scheduled_s"].tolist() == pytest.approx([0.0, 0.014])
    assert records["first_token_s"].tolist() == pytest.approx([0.014, 0.027])
    assert records["last_token_s"].tolist() == pytest.approx([0.039, 0.039])
    assert records["max_itl_s"].tolist() == pytest.approx([0.013, 0.012])


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    loop = run(unrelated([0.0], [10], [1]), config(max_num_batched_tokens=4), keep_token_times=True)
    assert token_times_ms(loop, 0) == pytest.approx([14 + 14 + 12])


def test_time_jumps_to_the_next_arrival_when_there_is_nothing_to_run() -> None:
    loop = run(unrelated([1.0, 500.0], [4, 4], [1, 1]), config(), keep_token_times=True)
    assert loop.token_times()[1].tolist() == pytest.approx([1.014, 500.014])
    assert loop.totals()["busy_s"] == pytest.approx(0.028)


def test_arrivals_need_no_order() -> None:
    loop = run(unrelated([5.0, 0.0], [4, 4], [1, 1]), config())
    assert loop.records()["first_token_s"].tolist() == pytest.approx([5.014, 0.014])


def test_a_follow_up_arrives_after_the_end_of_what_it_follows_and_finds_its_history() -> None:
    session = stream_id(StreamKind.SESSION, 1)
    prompts = Prompts.from_runs([[(session, 6)], [(session, 20)]], [session, session])
    workload = make_workload([0.0, 2.0], prompts, [7, 1], follows=[-1, 0])
    records = run(workload, config()).records()
    assert records["last_token_s"][0] == pytest.approx(0.016 + 6 * 0.011)
    assert records["arrival_s"][1] == pytest.approx(records["last_token_s"][0] + 2.0)
    # 6 + 7 tokens are known, the last one is not computed: three complete blocks of four.
    assert records["num_cached_tokens"].tolist() == [0, 12]
    assert records["first_token_s"][1] - records["arrival_s"][1] == pytest.approx(0.018)


def test_a_refused_request_ends_at_once_and_its_follow_up_still_arrives() -> None:
    workload = unrelated([1.0, 2.0], [200, 4], [1, 1], follows=[-1, 0])
    records = run(workload, config()).records()
    assert records["outcome"].tolist() == [SimulatedOutcome.TOO_LONG, SimulatedOutcome.FINISHED]
    assert records["arrival_s"].tolist() == [1.0, 3.0]


def test_a_full_queue_refuses() -> None:
    workload = unrelated([0.0, 0.0, 0.0], [4, 4, 4], [1, 1, 1])
    records = run(workload, config(max_num_seqs=1, max_num_waiting=2)).records()
    finished, refused = SimulatedOutcome.FINISHED, SimulatedOutcome.QUEUE_FULL
    assert records["outcome"].tolist() == [finished, finished, refused]
    assert np.isnan(records["first_token_s"][2])


def test_an_answer_ends_where_the_context_does() -> None:
    records = run(unrelated([0.0], [120], [50]), config()).records()
    assert records["num_output_tokens"].tolist() == [8]


def test_gaps_above_the_target_and_tokens_behind_their_cumulative_deadlines_are_counted() -> None:
    # Tokens at 14, 25, 45 and 56 ms: the prompt of the second request makes one gap 20 ms long.
    workload = unrelated([0.0, 0.015], [4, 9], [4, 1]).with_targets(14.5, 12.0, 12.0)
    records = run(workload, config()).records()
    assert records["num_itl_violations"].tolist() == [1, 0]
    # Due are those of the first after 26.5, 38.5 and 50.5 ms.
    assert records["num_tpot_violations"].tolist() == [2, 0]


def test_who_ran_ahead_may_pause_under_a_tpot_target() -> None:
    workload = unrelated([0.0, 0.015], [4, 9], [4, 1]).with_targets(30.0, 12.0, 12.0)
    records = run(workload, config()).records()
    assert records["num_itl_violations"].tolist() == [1, 0]
    assert records["num_tpot_violations"].tolist() == [0, 0]  # due after 42, 54 and 66 ms


def test_without_a_ttft_target_tokens_are_due_from_when_the_first_came() -> None:
    workload = unrelated([0.0, 0.015], [4, 9], [4, 1])
    in_time, late = (run(workload.with_targets(None, None, tpot), config()).records() for tpot in (16.0, 13.0))
    assert in_time["num_tpot_violations"].tolist() == [0, 0]  # due 30, 46 and 62 ms
    assert late["num_tpot_violations"].tolist() == [2, 0]  # 27, 40 and 53 ms


def test_without_targets_nothing_is_due() -> None:
    records = run(unrelated([0.0], [4], [4]), config()).records()
    assert records["num_itl_violations"].tolist() == [0]
    assert records["num_tpot_violations"].tolist() == [0]


def test_samples_show_the_queue() -> None:
    workload = unrelated([0.0] * 4, [4] * 4, [2] * 4)
    samples = run(workload, config(max_num_seqs=1), sample_interval_s=0.02).samples()
    # Each request takes two steps, 14 and 11 ms; a sample is taken at the first step in each 20 ms.
    assert samples["time_s"].tolist() == pytest.approx([0.0, 0.025, 0.050, 0.064, 0.089])
    assert samples["num_running"][:, RequestClass.ONLINE].tolist() == [1, 1, 1, 1, 1]
    assert samples["num_waiting"][:, RequestClass.ONLINE].tolist() == [3, 2, 1, 1, 0]
    assert samples["num_running"].shape == (5, len(RequestClass))


def random_workload(seed: int) -> Workload:
    """Conversations, shared blocks and unrelated requests; online and offline; more than memory holds."""
    rng = np.random.default_rng(seed)
    sessions, follows, runs, continuations, outputs = 8, [], [], [], []
    for session in range(sessions):
        stream, length = stream_id(StreamKind.SESSION, session), 0
        for turn in range(3):
            length += int(rng.integers(1, 20))
            follows.append(len(runs) - 1 if turn else -1)
            runs.append([(stream, length)])
            continuations.append(stream)
            outputs.append(int(rng.integers(1, 15)))
            length += outputs[-1]
    talks = make_workload(
        rng.exponential(0.2, len(runs)), Prompts.from_runs(runs, continuations), outputs, follows=follows
    )

    runs = []
    for request in range(20):
        blocks = [(stream_id(StreamKind.BLOCK, int(rng.integers(3)) + 10 * i), 8 * (i + 1)) for i in range(3)]
        own = (stream_id(StreamKind.REQUEST, request), 24 + int(rng.integers(1, 30)))
        runs.append([*blocks, own])
    shared = make_workload(rng.uniform(0, 1.0, 20), Prompts.from_runs(runs, range(20)), rng.integers(1, 20, 20))
    shared = replace(shared, priority=rng.integers(0, 3, 20))
    bulk = unrelated([0.0] * 15, [140, *rng.integers(1, 128, 14).tolist()], rng.integers(1, 20, 15).tolist())
    return merge(
        [talks.with_targets(50, 12, 10), shared.with_targets(None, None, 8), bulk.with_class(RequestClass.OFFLINE)]
    )


COST = linear_cost("with contexts", 3.0, 0.4, -0.1, 0.003, 0.0007)


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"policy": "priority", "max_num_batched_tokens": 32},
        {"enable_chunked_prefill": False, "max_num_batched_tokens": 128},
        {"enable_prefix_caching": False, "num_blocks": 40},
        {"max_num_seqs": 4, "num_blocks": 36},
    ],
    ids=str,
)
def test_equals_a_plain_python_loop_over_the_same_scheduler(seed: int, fields: dict[str, Any]) -> None:
    workload, settings = random_workload(seed), config(**fields)
    loop = run(workload, settings, COST, keep_token_times=True)
    twin = run_twin(workload, settings, Estimates(latency=COST.to_core()))
    requests, times = loop.token_times()
    assert list(zip(requests.tolist(), times.tolist(), strict=True)) == twin.tokens
    records = loop.records()
    for name in ("arrival_s", "scheduled_s", "num_cached_tokens"):
        expected: dict[int, float] = getattr(twin, name)
        column = {request: records[name][request].item() for request in expected}
        assert column == expected, name
    assert {int(r) for r in np.flatnonzero(records["num_preemptions"])} == {
        r for r, n in twin.num_preemptions.items() if n
    }
    assert np.flatnonzero(records["outcome"] == SimulatedOutcome.FINISHED).tolist() == sorted(twin.finished)
    for request, token_times in twin.token_times_s.items():
        gaps = np.diff(token_times)
        assert records["max_itl_s"][request] == gaps.max(initial=0.0)
        assert records["num_itl_violations"][request] == (gaps > workload.itl_target_ms[request] / 1000).sum()
        assert records["num_tpot_violations"][request] == num_behind(workload, records, request, token_times)
    assert loop.totals()["num_steps"] == twin.num_steps


def num_behind(workload: Workload, records: dict[str, Any], request: int, token_times: list[float]) -> int:
    """Tokens after the first behind their cumulative deadlines."""
    ttft, tpot = workload.ttft_target_ms[request] / 1000, workload.tpot_target_ms[request] / 1000
    start = token_times[0] if ttft == np.inf else records["arrival_s"][request] + ttft
    return sum(time > start + i * tpot for i, time in enumerate(token_times) if i)


def test_the_random_workload_meets_memory_pressure_sharing_and_refusal() -> None:
    records = run(random_workload(2), config(num_blocks=36), COST).records()
    assert records["num_preemptions"].sum() > 0
    assert records["num_cached_tokens"].sum() > 0
    assert set(records["outcome"].tolist()) == {SimulatedOutcome.FINISHED, SimulatedOutcome.TOO_LONG}


def test_every_request_ends_exactly_once_with_all_of_its_tokens() -> None:
    workload = random_workload(3)
    loop = run(workload, config(num_blocks=36), COST, keep_token_times=True)
    records = loop.records()
    finished = records["outcome"] == SimulatedOutcome.FINISHED
    refused = records["outcome"] == SimulatedOutcome.TOO_LONG
    assert (finished ^ refused).all()
    assert loop.num_ended == len(workload)
    counts = np.bincount(loop.token_times()[0], minlength=len(workload))
    wanted = np.minimum(workload.output_tokens, 128 - workload.input_tokens)
    assert counts[finished].tolist() == wanted[finished].tolist() == records["num_output_tokens"][finished].tolist()
    assert not counts[refused].any()


def all_bytes(loop: simulation.SimulationLoop) -> list[bytes]:
    arrays: list[npt.NDArray[Any]] = [*loop.records().values(), *loop.samples().values(), *loop.token_times()]
    return [array.tobytes() for array in [*arrays, *map(loop.itl_histogram, RequestClass)]]


def test_the_same_inputs_give_the_same_bytes_however_the_run_is_cut() -> None:
    workload, settings = random_workload(4), config(num_blocks=40)
    one = run(workload, settings, COST, keep_token_times=True, sample_interval_s=0.05)
    other = simulation.SimulationLoop(
        settings,
        Estimates(latency=COST.to_core()),
        request_columns(workload),
        keep_token_times=True,
        sample_interval_s=0.05,
    )
    assert not other.run(10**9)
    assert all_bytes(one) == all_bytes(other)


def test_run_stops_after_the_steps_it_was_given() -> None:
    loop = simulation.SimulationLoop(
        config(), Estimates(latency=SIMPLE.to_core()), request_columns(unrelated([0.0], [4], [3]))
    )
    assert loop.run(2)
    assert loop.totals()["num_steps"] == 2
    assert not loop.run(1)


def test_time_stands_still_when_steps_cost_nothing() -> None:
    free = linear_cost("free", 0.0, 0.0, 0.0, 0.0, 0.0)
    loop = run(unrelated([3.0], [4], [3]), config(), free)
    assert loop.now == 3.0
    assert loop.itl_histogram(RequestClass.ONLINE)[0] == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"arrival_s": np.array([0.0, np.nan])}, "arrival_s"),
        ({"follows": np.array([1, 0], np.int32)}, "circle"),
        ({"follows": np.array([-1, 7], np.int32)}, "does not exist"),
        ({"num_outputs": np.array([1, 0], np.int32)}, "num_outputs"),
        ({"num_outputs": np.array([1], np.int32)}, "one length"),
        ({"request_class": np.array([0, 9], np.uint8)}, "class"),
        ({"itl_target_s": np.array([1.0, np.nan])}, "targets"),
        ({"tpot_target_s": np.array([1.0, -1.0])}, "targets"),
        ({"run_ends": np.array([4, 0], np.int32)}, "ascend"),
        ({"run_offsets": np.array([0, 2, 1], np.int64)}, "runs"),
    ],
)
def test_columns_that_make_no_sense_are_refused(change: dict[str, Any], message: str) -> None:
    columns: Any = {**request_columns(unrelated([0.0, 1.0], [4, 4], [1, 1])), **change}
    with pytest.raises(ValueError, match=message):
        simulation.SimulationLoop(config(), Estimates(latency=SIMPLE.to_core()), columns)


def test_two_requests_cannot_follow_one() -> None:
    workload = unrelated([0.0, 1.0, 1.0], [4] * 3, [1] * 3, follows=[-1, 0, 0])
    with pytest.raises(ValueError, match="follow the same"):
        run(workload, config())


def test_columns_of_another_type_are_refused() -> None:
    columns: Any = {**request_columns(unrelated([0.0], [4], [1])), "follows": np.array([-1], np.int64)}
    with pytest.raises(TypeError, match="follows"):
        simulation.SimulationLoop(config(), Estimates(latency=SIMPLE.to_core()), columns)


def test_steps_take_as_much_longer_as_their_errors_say() -> None:
    workload = unrelated([0.0, 0.0], [4, 4], [30, 30])
    times = {}
    for errors in ((), (1.0,), (1.5,), (0.8, 1.0, 2.0)):
        estimates = Estimates(latency=SIMPLE.to_core())
        columns = request_columns(workload)
        loop = simulation.SimulationLoop(config(), estimates, columns, step_errors=errors, error_seed=1)
        while loop.run(100):
            pass
        times[errors] = loop.now
    assert times[(1.0,)] == times[()]
    assert times[(1.5,)] == pytest.approx(1.5 * times[()])
    assert 0.8 * times[()] < times[0.8, 1.0, 2.0] < 2 * times[()]
    assert times[0.8, 1.0, 2.0] != times[()]


@pytest.mark.parametrize("errors", [(1.1, 0.9), (0.0, 1.0)])
def test_step_errors_ascend_and_are_positive(errors: tuple[float, ...]) -> None:
    columns = request_columns(unrelated([0.0], [4], [3]))
    with pytest.raises(ValueError, match="step errors"):
        simulation.SimulationLoop(config(), Estimates(latency=SIMPLE.to_core()), columns, step_errors=errors)

"""Recorded requests under another policy. The oracle: an engine whose steps take exactly what a latency model says."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from schedcore._core import AddStatus, algorithms
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.record.recipe import Recipe
from schedcore.record.recorded_requests import Recorded, read_recorded
from schedcore.record.recording_scheduler import RecordingScheduler
from schedcore.record.replay import Replay
from schedcore.simulation.what_if import Course, recorded_course, serve_again

TRUTH = LatencyCoefficients(step_base=0.004, prefill_token=2e-4, decode_seq=1e-3, decode_context=1e-5, overlap=0.0)
CONFIG = {"num_units": 300, "num_layers": 2, "layers_per_unit": 2, "block_size": 4, "max_model_len": 128}


COEFFICIENTS = Recipe("LatencyCoefficients", msgspec.structs.asdict(TRUTH))
ESTIMATES = Recipe(
    "Estimates", {"latency": Recipe("LatencyModel", {"form": "corrected", "coefficients": COEFFICIENTS})}
)


def record_engine(
    path: Path,
    seed: int = 1,
    num_requests: int = 60,
    knows_the_machine: bool = True,
    tpot_target: float | None = None,
    **config: object,
) -> None:
    """Every third request continues the conversation of an earlier one, answer included; every fourth is important.

    Without a TPOT target the record says nothing of it, as those say that are older than it.
    """
    rng = random.Random(seed)
    limits = {"max_num_seqs": 6, "max_num_batched_tokens": 48}
    made = Recipe("SchedulerConfig", {**CONFIG, **limits, **config})
    recipe = Recipe("Scheduler", {"config": made, **({"estimates": ESTIMATES} if knows_the_machine else {})})
    scheduler, latency = RecordingScheduler(recipe, path), core_model("corrected", TRUTH)
    arrivals = np.cumsum([rng.expovariate(40) for _ in range(num_requests)]).tolist()
    known: dict[int, list[int]] = {}
    now, num_added = 0.0, 0
    while num_added < num_requests or scheduler.has_work():
        while num_added < num_requests and arrivals[num_added] <= now:
            history = known[rng.choice(list(known))][:60] if known and num_added % 3 == 0 else []
            known[num_added] = [*history, *(rng.randrange(50) for _ in range(rng.randint(1, 40)))]
            status = scheduler.add_request(
                num_added,
                known[num_added],
                max_tokens=rng.randint(1, 20),
                stop_token_ids=[7],
                priority=-(num_added % 4 == 0),
                request_class=int(num_added % 4 != 0),
                arrival_time=arrivals[num_added],
                ttft_target=0.2 if num_added % 4 == 0 else None,
                itl_target=0.05 if num_added % 4 == 0 else None,
                **({"tpot_target": tpot_target} if tpot_target is not None and num_added % 4 == 0 else {}),
                cache_salt=["", "a"][num_added % 2],
            )
            assert status is AddStatus.OK
            num_added += 1
        plan = scheduler.schedule(now)
        if not plan:
            now = max(now, arrivals[num_added])
            continue
        now += latency.predict(algorithms.plan_features(plan))
        sampled = np.array([rng.randrange(50) for _ in plan.sample_seqs], np.int32)
        for request_id, token in zip(plan.request_ids[plan.sample_seqs].tolist(), sampled.tolist(), strict=True):
            known[request_id].append(token)
        scheduler.commit(sampled, now)
    scheduler.close()


@pytest.fixture
def record(tmp_path: Path) -> tuple[Recorded, Replay]:
    record_engine(tmp_path / "decisions")
    return read_recorded(tmp_path / "decisions")


def test_the_model_of_the_steps_is_found_again(record: tuple[Recorded, Replay]) -> None:
    recorded, result = record
    assert result.is_identical
    fitted = recorded.fit()
    assert fitted.held_out_error.mean < 1e-6
    assert recorded.explained_ratio(fitted) == pytest.approx(1, abs=1e-6)


def classes_close(course: Course, other: Course) -> bool:
    for mine, theirs in zip(course.classes, other.classes, strict=True):
        assert mine.ttft_ms is not None
        assert theirs.ttft_ms is not None
        assert (mine.request_class, mine.num_requests) == (theirs.request_class, theirs.num_requests)
        assert (mine.num_refused, mine.slo_attainment_ratio) == (theirs.num_refused, theirs.slo_attainment_ratio)
        assert mine.cached_prompt_ratio == theirs.cached_prompt_ratio
        assert mine.ttft_ms.p99 == pytest.approx(theirs.ttft_ms.p99, rel=1e-4)
        assert mine.e2e_ms.mean == pytest.approx(theirs.e2e_ms.mean, rel=1e-4)
        assert mine.itl_ms.max == pytest.approx(theirs.itl_ms.max, rel=1e-4)
    return True


@pytest.mark.parametrize(
    "config", [{}, {"policy": "priority"}, {"num_units": 70}, {"num_units": 70, "policy": "hocket"}]
)
def test_the_same_policy_again_is_what_was_recorded(config: dict[str, object], tmp_path: Path) -> None:
    record_engine(tmp_path / "decisions", **config)
    recorded, result = read_recorded(tmp_path / "decisions")
    measured = recorded_course(recorded, result)
    again = serve_again(recorded, recorded.fit(), str(config.get("policy", "fcfs")), {})
    assert classes_close(again, measured)
    assert (again.num_steps, again.num_preemptions) == (measured.num_steps, measured.num_preemptions)
    assert measured.num_preemptions > 0 or config != {"num_units": 70}
    assert again.duration_s == pytest.approx(measured.duration_s, rel=1e-4)
    assert (measured.is_simulated, again.is_simulated) == (False, True)
    assert any(of_class.cached_prompt_ratio > 0 for of_class in measured.classes)


def test_measured_times_are_those_of_the_engines_clock(tmp_path: Path) -> None:
    record_engine(tmp_path / "decisions", num_requests=1)
    recorded, _ = read_recorded(tmp_path / "decisions")
    (request,) = recorded.answered()
    model, batch = core_model("corrected", TRUTH), algorithms.LatencyBatch(128)
    batch.add_chunk(0, len(request.prompt))
    assert len(request.prompt) > 1
    assert request.times_s[0] - request.arrival_s == pytest.approx(model.predict(batch.features))
    assert len(request.times_s) == len(request.tokens) <= request.options["max_tokens"]


def test_important_requests_fare_better_under_priority(tmp_path: Path) -> None:
    record_engine(tmp_path / "decisions", max_num_seqs=2)
    recorded, result = read_recorded(tmp_path / "decisions")
    fcfs, priority = recorded_course(recorded, result), serve_again(recorded, recorded.fit(), "priority", {})
    assert fcfs.classes[0].request_class == priority.classes[0].request_class == "online"
    assert priority.classes[0].ttft_ms.p50 < fcfs.classes[0].ttft_ms.p50 / 2
    assert priority.classes[0].slo_attainment_ratio > fcfs.classes[0].slo_attainment_ratio


def test_a_recorded_tpot_target_counts(tmp_path: Path) -> None:
    attained = []
    for tpot_target in (None, 10.0, 0.001):
        record_engine(tmp_path / str(tpot_target), tpot_target=tpot_target)
        recorded, result = read_recorded(tmp_path / str(tpot_target))
        assert result.is_identical
        attained.append(recorded_course(recorded, result).classes[0].slo_attainment_ratio)
    assert attained[0] == attained[1] > attained[2]


def test_a_scheduler_that_knew_nothing_of_the_machine_gets_the_fitted_model(tmp_path: Path) -> None:
    courses = []
    for knows in (True, False):
        path = tmp_path / str(knows)
        record_engine(path, knows_the_machine=knows)  # fcfs does not ask
        recorded, _ = read_recorded(path)
        courses.append(serve_again(recorded, recorded.fit(), "hocket", {}))
    assert classes_close(*courses)


def test_settings_of_the_scheduler_may_differ(record: tuple[Recorded, Replay]) -> None:
    recorded, _ = record
    one_by_one = serve_again(recorded, recorded.fit(), "fcfs", {"max_num_seqs": 1})
    assert one_by_one.num_steps > serve_again(recorded, recorded.fit(), "fcfs", {}).num_steps
    with pytest.raises(ValueError, match=r"no such settings: .*colour=red"):
        serve_again(recorded, recorded.fit(), "fcfs", {"colour": "red"})
    with pytest.raises(ValueError, match="policy"):
        serve_again(recorded, recorded.fit(), "astrology", {})


def test_served_again_with_guesses_answers_end_where_they_ended(record: tuple[Recorded, Replay]) -> None:
    recorded, result = record
    measured = recorded_course(recorded, result)
    for request in recorded.requests:  # that say the same again and again
        request.tokens[:] = [11, 12, 13] * len(request.tokens)
        del request.tokens[len(request.times_s) :]
    plain, guessing = (serve_again(recorded, recorded.fit(), "fcfs", {"max_guessed_tokens": n}) for n in (0, 6))
    assert guessing.num_steps < plain.num_steps
    num_tokens = [round(c.output_tokens_per_second * c.duration_s) for c in (measured, plain, guessing)]
    assert num_tokens[0] == num_tokens[1] == num_tokens[2]


def test_what_the_other_settings_refuse_is_counted(record: tuple[Recorded, Replay]) -> None:
    recorded, _ = record
    course = serve_again(recorded, recorded.fit(), "fcfs", {"max_model_len": 40})
    assert sum(of_class.num_refused for of_class in course.classes) > 0


def test_an_aborted_request_ends_where_it_was_aborted_or_is_left_out(tmp_path: Path) -> None:
    recipe = Recipe("Scheduler", {"config": Recipe("SchedulerConfig", CONFIG)})
    scheduler = RecordingScheduler(recipe, tmp_path / "decisions")
    for request_id in (1, 2):
        scheduler.add_request(request_id, [1, 2, 3], max_tokens=50)
    for step in range(30):
        plan = scheduler.schedule(step * 0.1)
        scheduler.commit(np.zeros(len(plan.sample_seqs), np.int32), step * 0.1 + 0.05)
        if step == 4:
            scheduler.abort(1)
            scheduler.add_request(3, [1], max_tokens=1)
            scheduler.abort(3)
    scheduler.close()
    recorded, result = read_recorded(tmp_path / "decisions")
    assert (result.num_requests, result.num_aborts) == (3, 2)
    assert [len(request.tokens) for request in recorded.answered()] == [5, 30]
    course = serve_again(recorded, recorded.fit(), "fcfs", {})
    assert (course.num_steps, course.classes[0].num_requests) == (30, 2)

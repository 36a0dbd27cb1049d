"""Recording an advisor: an engine in a page, with memory of its own; what it tells decides the same once more."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fakes.recorded_histories import COEFFICIENTS, read_calls, rewrite
from schedcore._core import Advisor, CoreError
from schedcore.api.config import POLICIES
from schedcore.record.decision_record import AdviceResult, AdvisorCall, RecordError
from schedcore.record.recipe import Recipe
from schedcore.record.recorded_requests import read_recorded
from schedcore.record.recording_advisor import METHODS, RecordingAdvisor
from schedcore.record.replay import replay

READ_ONLY = {"retry_seconds", "running", "stats", "check_invariants"}
NUM_BLOCKS, BLOCK = 12, 16
ESTIMATES = Recipe(
    "Estimates", {"latency": Recipe("LatencyModel", {"form": "corrected", "coefficients": COEFFICIENTS})}
)


def recipe(policy: str = "hocket") -> Recipe:
    memory = {"num_units": 2 * NUM_BLOCKS, "num_layers": 1, "layers_per_unit": 1, "block_size": BLOCK}
    limits = {"max_num_seqs": 4, "max_num_batched_tokens": 48, "max_model_len": 128, "max_ttft_ms": 20.0}
    config = Recipe("SchedulerConfig", {**memory, **limits, "policy": policy, "refine_latency": True})
    return Recipe("Advisor", {"config": config, "estimates": ESTIMATES})


def blocks(num_tokens: int) -> int:
    return -(-num_tokens // BLOCK)


def column(values: list[int]) -> np.ndarray:
    return np.array(values, np.int32)


def live(advisor: Advisor, seed: int, num_steps: int = 40) -> list[object]:
    """Requests come, are aborted and end; the engine leaves out who has no memory, and puts out whom it likes."""
    draw, now = random.Random(seed), 0.0
    known: dict[int, int] = {}  # tokens by slot
    limits: dict[int, int] = {}
    computed: dict[int, int] = {}  # of those that run
    said: list[object] = []

    def num_free() -> int:
        return NUM_BLOCKS - sum(map(blocks, computed.values()))

    for _ in range(num_steps):
        for _ in range(draw.randint(0, 2)):
            prompt, request_class = [draw.randrange(3) for _ in range(draw.randint(1, 60))], draw.randint(0, 1)
            said.append(advisor.accepts(prompt, 0, request_class))
            if said[-1]:
                limit = draw.randint(1, 30)
                slot = advisor.add_request(
                    prompt, max_tokens=limit, request_class=request_class, arrival_time=now, cache_salt="secret"
                )
                advisor.set_cached(slot, draw.choice((0, 16)))
                known[slot], limits[slot] = len(prompt), len(prompt) + limit
        if known and draw.random() < 0.1:
            gone = draw.choice(list(known))
            advisor.remove(gone, False)
            known.pop(gone), computed.pop(gone, None)
        advice = advisor.compose(now, column(list(computed)), column(list(computed.values())), num_free())
        said.append([part.tolist() if isinstance(part, np.ndarray) else part for part in advice])
        preempted, admitted, limited = (advice[i].tolist() for i in (2, 3, 4))
        caps = dict(zip(limited, advice[5].tolist(), strict=True))
        for slot in [*preempted, *(slot for slot in [*computed] if draw.random() < 0.03)]:
            if computed.pop(slot, None) is not None:
                advisor.note_preempted(column([slot]))
        rows = []
        for slot in [*computed, *(slot for slot in admitted if len(computed) < 4)]:
            done = computed.get(slot, 0)
            num = min(caps.get(slot, 1 << 20), known[slot] - done)
            if num > 0 and blocks(done + num) - blocks(done) <= num_free():
                computed[slot] = done + num
                rows.append((slot, num, done))
        if rows:
            advisor.note_scheduled(now, *(column(list(part)) for part in zip(*rows, strict=True)))
            now += 0.01 + draw.random() / 100
            sampled = [slot for slot, _, _ in rows if computed[slot] == known[slot]]
            advisor.commit(now, column(sampled), column([1] * len(sampled)))
            for slot in sampled:
                known[slot] += 1
                if known[slot] == limits[slot]:
                    advisor.remove(slot, True)
                    known.pop(slot), computed.pop(slot)
        elif computed:
            advisor.note_preempted(column([computed.popitem()[0]]))
        advisor.check_invariants()
    return said


def record_of(path: Path, seed: int = 1, policy: str = "hocket") -> Path:
    recorded = RecordingAdvisor(recipe(policy), path)
    live(recorded, seed)
    recorded.close()
    return path


@pytest.mark.parametrize("policy", POLICIES)
def test_a_history_replays_with_identical_advice(policy: str, tmp_path: Path) -> None:
    for seed in range(10):
        path = tmp_path / str(seed)
        recorded = RecordingAdvisor(recipe(policy), path)
        said = live(recorded, seed)
        recorded.close()
        assert said == live(recipe(policy).build(), seed), "recording changes advice"
        result = replay(path)
        assert (result.difference, result.ending, result.num_unread_bytes) == (None, "closed", 0)
        assert result.policy == policy
        assert result.num_steps == recorded.stats()["num_steps"] > 10
        assert result.num_calls == len(read_calls(path))


def test_histories_hold_what_a_test_of_replays_needs(tmp_path: Path) -> None:
    results = [replay(record_of(tmp_path / str(seed), seed)) for seed in range(10)]
    names = ("num_requests", "num_refused", "num_aborts", "num_output_tokens", "num_preemptions", "duration_s")
    assert all(sum(getattr(result, name) for result in results) > 1 for name in names)


def test_every_method_of_the_advisor_is_recorded_or_changes_nothing() -> None:
    public = {name for name in dir(Advisor) if not name.startswith("_")}
    assert public - READ_ONLY == {*METHODS}
    assert set(vars(RecordingAdvisor)) >= {*METHODS}


def test_other_advice_is_found_at_its_call(tmp_path: Path) -> None:
    calls = read_calls(record_of(tmp_path / "decisions"))
    at, call = next((i, c) for i, c in enumerate(calls) if isinstance(c, AdvisorCall) and c.method == "compose")
    assert isinstance(call.result, AdviceResult)
    other = msgspec.structs.replace(call, result=msgspec.structs.replace(call.result, digest=b"12345678"))
    rewrite(tmp_path / "decisions", tmp_path / "other", lambda calls: [*calls[:at], other, *calls[at + 1 :]])
    difference = replay(tmp_path / "other").difference
    assert difference is not None
    assert difference.call == at + 1
    assert "compose()" in difference.what


def test_what_an_advisor_does_not_have_is_not_called(tmp_path: Path) -> None:
    path = record_of(tmp_path / "decisions")
    rewrite(path, tmp_path / "other", lambda calls: [AdvisorCall("__init__", [], {}, None), *calls])
    with pytest.raises(RecordError, match="no call '__init__'"):
        replay(tmp_path / "other")


def test_a_failure_of_the_core_is_recorded(tmp_path: Path) -> None:
    recorded = RecordingAdvisor(recipe(), tmp_path / "decisions")
    with pytest.raises(CoreError):
        recorded.commit(0.0, column([]), column([]))
    recorded.close()
    (failed,) = read_calls(tmp_path / "decisions")
    assert failed.error
    assert replay(tmp_path / "decisions").is_identical


def test_salts_are_not_in_it_and_it_is_not_served_again(tmp_path: Path) -> None:
    path = record_of(tmp_path / "decisions")
    assert b"secret" not in path.read_bytes()
    with pytest.raises(RecordError, match="keeps its own memory"):
        read_recorded(path)

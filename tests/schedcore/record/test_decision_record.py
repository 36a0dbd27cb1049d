"""Recording: whatever a scheduler lives through can be read back, and the same calls decide the same."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.recorded_histories import live, read_calls, rewrite, scheduler_recipe, write_record
from schedcore._core import CoreError, Scheduler, block_keys
from schedcore.api.config import POLICIES
from schedcore.record.decision_record import (
    AbortCall,
    AddCall,
    Call,
    CommitCall,
    Ending,
    RecordError,
    RecordReader,
    RememberCall,
    ScheduleCall,
)
from schedcore.record.recipe import Recipe
from schedcore.record.recording_scheduler import RecordingScheduler, int32_array
from schedcore.record.replay import replay

RECORDED = {
    *("add_request", "abort", "force", "suggest", "schedule", "commit", "reset_prefix_cache"),
    *("complete_moves", "note_on_disk", "forget_on_disk", "advise", "remember_session"),
    *("note_on_peer", "forget_peer", "note_peer_rate", "lend", "take_back", "adopt_session", "pull_session"),
}
READ_ONLY = {
    "retry_seconds",
    "has_work",
    "has_moves",
    "has_background_work",
    "stats",
    "check_invariants",
    "latency",
    "session_tokens",
    "has_in_tiers",
    "recent_sessions",
    "ask_model",  # and
    "note_model",  # what decides it: what a plan holds of the answer is what was suggested
}

configs = st.fixed_dictionaries(
    {
        "num_units": st.sampled_from([8, 24, 60]),
        "policy": st.sampled_from(POLICIES),
        "enable_prefix_caching": st.booleans(),
        "enable_chunked_prefill": st.booleans(),
        "refine_latency": st.booleans(),
        "max_guessed_tokens": st.sampled_from([0, 5]),
    }
)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write_record(tmp_path / "decisions", num_units=24)


@given(seed=st.integers(0, 2**32), config=configs)
@settings(max_examples=60, deadline=None)
def test_a_history_replays_with_identical_decisions(
    seed: int, config: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("record") / "decisions"
    recorded = RecordingScheduler(scheduler_recipe(**config), path)
    decisions = live(recorded, seed)
    recorded.close()
    assert decisions == live(scheduler_recipe(**config).build(), seed), "recording changes decisions"
    stats, result = recorded.stats(), replay(path)
    assert (result.is_identical, result.difference, result.ending, result.num_unread_bytes) == (
        *(True, None, "closed", 0),
    )
    assert result.policy == config["policy"]
    assert result.num_steps == stats["num_steps"]
    assert result.num_preemptions == stats["num_preemptions"]
    assert result.num_calls == len(read_calls(path))


def test_histories_hold_what_a_test_of_replays_needs(tmp_path: Path) -> None:
    results = [replay(write_record(tmp_path / str(seed), seed, num_units=24)) for seed in range(20)]
    names = ("num_steps", "num_requests", "num_refused", "num_aborts", "num_output_tokens", "num_preemptions")
    assert all(sum(getattr(result, name) for result in results) > 20 for name in names)


def test_arguments_are_recorded_exactly(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(scheduler_recipe(), tmp_path / "decisions")
    times = 0.1 + 0.2, np.nextafter(0.1 + 0.2, 1)
    scheduler.add_request(2**64 - 1, [1, 2, 0], max_tokens=1, arrival_time=-1e-300, ttft_target=1 / 3, itl_target=None)
    scheduler.schedule(times[0])
    scheduler.commit(np.array([2**31 - 1], np.int32), times[1])
    scheduler.close()
    add, schedule, commit = read_calls(tmp_path / "decisions")
    assert isinstance(add, AddCall)
    assert isinstance(schedule, ScheduleCall)
    assert isinstance(commit, CommitCall)
    assert (add.request_id, int32_array(add.prompt_token_ids).tolist(), add.result) == (2**64 - 1, [1, 2, 0], "OK")
    assert add.options == {"max_tokens": 1, "arrival_time": -1e-300, "ttft_target": 1 / 3, "itl_target": None}
    assert (schedule.now, commit.now) == times
    assert int32_array(commit.sampled_token_ids).tolist() == [2**31 - 1]


def test_every_method_of_the_scheduler_is_recorded_or_changes_nothing() -> None:
    """A new method that changes the scheduler's state belongs into RecordingScheduler and the record's calls."""
    public = {name for name in dir(Scheduler) if not name.startswith("_")}
    assert public - READ_ONLY == RECORDED
    assert set(vars(RecordingScheduler)) >= RECORDED


def test_a_failure_of_the_core_is_a_recorded_decision(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(scheduler_recipe(), tmp_path / "decisions")
    with pytest.raises(CoreError):
        scheduler.commit(np.array([], np.int32), 0.0)
    with pytest.raises(TypeError):
        scheduler.add_request(1, "no ids", max_tokens=1)
    scheduler.close()
    (failed,) = read_calls(tmp_path / "decisions")
    assert failed.error
    assert replay(tmp_path / "decisions").is_identical


# ---- differences ----


def altered(calls: list[Call], index: int, **fields: object) -> list[Call]:
    return [*calls[:index], msgspec.structs.replace(calls[index], **fields), *calls[index + 1 :]]


def steps_before(calls: Iterable[Call]) -> int:
    return sum(
        isinstance(call, ScheduleCall) and call.result is not None and call.result.num_seqs > 0 for call in calls
    )


def test_an_altered_decision_is_the_first_difference(record: Path, tmp_path: Path) -> None:
    calls = read_calls(record)
    index = [i for i, call in enumerate(calls) if isinstance(call, ScheduleCall) and call.result.num_seqs][7]
    with RecordReader(record) as reader:
        field = reader.header.plan_fields.index("rows")
    plan = calls[index].result
    digests = bytearray(plan.digests)
    digests[8 * field] ^= 1
    changed = msgspec.structs.replace(plan, digests=bytes(digests))
    result = replay(rewrite(record, tmp_path / "altered", lambda calls: altered(calls, index, result=changed)))
    assert not result.is_identical
    assert (result.difference.step, result.difference.call) == (8, index + 1)
    assert result.difference.what.endswith(": rows")
    assert result.difference.recorded == result.difference.replayed  # the counts agree
    assert f"{plan.num_seqs} sequences, {plan.num_tokens} tokens" in result.difference.recorded


def test_an_altered_prompt_shows_in_the_next_plan(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(scheduler_recipe(), tmp_path / "decisions")
    scheduler.add_request(1, [1, 1, 1], max_tokens=1)
    scheduler.schedule(0.0)
    scheduler.close()

    def other_prompt(calls: list[Call]) -> list[Call]:
        return altered(calls, 0, prompt_token_ids=np.array([1, 1, 2], np.int32).tobytes())

    difference = replay(rewrite(tmp_path / "decisions", tmp_path / "altered", other_prompt)).difference
    assert (difference.step, difference.call) == (1, 2)
    assert difference.what == "the plan of schedule(0.0): token_ids"


def test_a_call_that_is_missing_shows(record: Path, tmp_path: Path) -> None:
    calls = read_calls(record)
    index = next(i for i, call in enumerate(calls) if isinstance(call, AddCall) and call.result == "OK")
    result = replay(rewrite(record, tmp_path / "altered", lambda calls: calls[:index] + calls[index + 1 :]))
    assert not result.is_identical
    assert result.ending == "not read"


@pytest.mark.parametrize(("kind", "wrong"), [(AddCall, "QUEUE_FULL"), (AbortCall, None)])
def test_altered_answers_show(kind: type[Call], wrong: object, record: Path, tmp_path: Path) -> None:
    calls = read_calls(record)
    index = next(i for i, call in enumerate(calls) if isinstance(call, kind))
    difference = replay(
        rewrite(record, tmp_path / "altered", lambda calls: altered(calls, index, result=wrong))
    ).difference
    assert (difference.call, difference.step) == (index + 1, steps_before(calls[:index]))
    assert (difference.recorded, difference.replayed) == (str(wrong), str(calls[index].result))


def test_another_configuration_shows(record: Path, tmp_path: Path) -> None:
    with RecordReader(record) as reader:
        header, calls = reader.header, list(reader.calls())
    other = msgspec.structs.replace(header, scheduler=scheduler_recipe(num_units=24, max_num_seqs=1))
    path = rewrite(record, tmp_path / "altered", lambda calls: calls, header=other)
    result = replay(path)
    assert not result.is_identical
    assert result.num_calls < len(calls)


def test_a_scheduler_of_another_version_is_no_difference_but_an_error(record: Path, tmp_path: Path) -> None:
    with RecordReader(record) as reader:
        header = reader.header
    strange = [
        ("cannot make", {"scheduler": Recipe("Scheduler", {"config": Recipe("SchedulerConfig", {"colour": "red"})})}),
        ("cannot make", {"scheduler": Recipe("Oracle", {})}),
        ("not of a Scheduler", {"scheduler": Recipe("MaxTracker", {"limit": 4})}),
        ("colours", {"plan_fields": [*header.plan_fields, "colours"]}),
    ]
    for number, (message, fields) in enumerate(strange):
        changed = msgspec.structs.replace(header, **fields)
        path = rewrite(record, tmp_path / str(number), lambda calls: calls, header=changed)
        with pytest.raises(RecordError, match=message):
            replay(path)


# ---- the file ----


def test_a_record_cut_off_anywhere_is_read_up_to_there(tmp_path: Path) -> None:
    record = write_record(tmp_path / "decisions", num_turns=12)
    data, calls = record.read_bytes(), read_calls(record)
    with RecordReader(record) as reader:
        start = reader.num_read_bytes
    endings = set()
    cut = tmp_path / "cut"
    for size in range(start, len(data)):
        cut.write_bytes(data[:size])
        with RecordReader(cut) as reader:
            found = list(reader.calls())
            assert found == calls[: len(found)]
            assert reader.ending in (Ending.CUT_OFF, Ending.OPEN)
            assert (reader.num_read_bytes == size) == (reader.ending is Ending.OPEN)
            endings.add(reader.ending)
    assert endings == {Ending.CUT_OFF, Ending.OPEN}
    result = replay(cut)
    assert (result.is_identical, result.num_calls, result.ending) == (True, len(calls), "cut off")
    assert result.num_unread_bytes > 0


def test_no_header_no_record(tmp_path: Path) -> None:
    data = write_record(tmp_path / "decisions", num_turns=1).read_bytes()
    with RecordReader(tmp_path / "decisions") as reader:
        header_end = reader.num_read_bytes
    cut = tmp_path / "cut"
    for size in range(header_end):
        cut.write_bytes(data[:size])
        with pytest.raises(RecordError, match="is no decision record"):
            RecordReader(cut)


def test_reading_stops_where_a_record_is_damaged(record: Path) -> None:
    calls, data = read_calls(record), bytearray(record.read_bytes())
    data[len(data) // 2] ^= 0x10
    record.write_bytes(data)
    with RecordReader(record) as reader:
        found = list(reader.calls())
        assert found == calls[: len(found)]
        assert reader.ending in (Ending.DAMAGED, Ending.CUT_OFF)  # the latter if the bit makes a frame longer
    result = replay(record)
    assert result.is_identical
    assert result.num_unread_bytes > 0


def test_a_record_of_another_format_says_so(record: Path, tmp_path: Path) -> None:
    with RecordReader(record) as reader:
        header = msgspec.structs.replace(reader.header, format=99)
    with pytest.raises(RecordError, match="format 99; this version reads format 1"):
        replay(rewrite(record, tmp_path / "altered", lambda calls: calls, header=header))


def test_only_the_owner_may_read_a_record(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        path = write_record(tmp_path / "decisions", num_turns=1)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_salt_is_not_in_the_record_but_still_separates(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    scheduler = RecordingScheduler(scheduler_recipe(), path)
    cached = []
    for request_id, salt in enumerate(["a secret", "a secret", "another", ""]):
        scheduler.add_request(request_id, [1, 2, 1, 2, 1], max_tokens=1, cache_salt=salt)
        scheduler.schedule(0.0)
        cached.append(scheduler.commit(np.array([0], np.int32), 0.0).num_cached_tokens.tolist()[0])
    scheduler.close()
    assert cached == [0, 4, 0, 0]
    assert b"secret" not in path.read_bytes()
    assert replay(path).is_identical


def test_sessions_of_an_earlier_life_are_recorded_without_their_salts(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    scheduler = RecordingScheduler(scheduler_recipe(max_num_sessions=2), path)
    assert scheduler.remember_session("chat", [1, 2, 0, 1], tenant="t", cache_salt="a secret")
    assert not scheduler.remember_session("chat", np.array([1], np.int32), tenant="t", cache_salt="a secret")
    assert not scheduler.remember_session("other", [1, -1])
    assert not scheduler.remember_session("other", [1, 2**70])
    assert scheduler.session_tokens("chat", tenant="t", cache_salt="a secret").tolist() == [1, 2, 0, 1]
    assert scheduler.session_tokens("chat", tenant="t").tolist() == []
    scheduler.add_request(1, [1, 2, 0, 1, 2], max_tokens=1, tenant="t", cache_salt="a secret", session_id="chat")
    scheduler.schedule(0.0)
    scheduler.commit(np.array([0], np.int32), 0.0)
    assert scheduler.session_tokens("chat", tenant="t", cache_salt="a secret").tolist() == [1, 2, 0, 1, 2]
    scheduler.close()
    assert b"secret" not in path.read_bytes()
    remembered = [call for call in read_calls(path) if isinstance(call, RememberCall)]
    assert [call.result for call in remembered] == [True, False, False, False]
    assert replay(path).is_identical

    def known_already(calls: list[Call]) -> list[Call]:
        return altered(calls, 0, result=False)

    difference = replay(rewrite(path, tmp_path / "altered", known_already)).difference
    assert (difference.what, difference.replayed) == ("remember_session('chat')", "True")


def test_what_peers_say_and_get_is_recorded(tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    scheduler = RecordingScheduler(scheduler_recipe(num_host_blocks=8), path)
    scheduler.add_request(1, [1, 2, 0, 1, 2, 1, 1, 1, 2], max_tokens=1, session_id="chat", cache_salt="a secret")
    plan = scheduler.schedule(0.0)
    moves = plan.move_ids.tolist()
    scheduler.commit(np.array([0], np.int32), 0.0)
    moves += scheduler.schedule(0.0).move_ids.tolist()
    scheduler.complete_moves(moves)
    salt = scheduler.recent_sessions(5)[0][1]
    keys = block_keys("", salt, [1, 2, 0, 1, 2, 1, 1, 1], 2)
    assert scheduler.has_in_tiers(keys).all()
    assert (scheduler.lend(keys) >= 0).all()
    scheduler.take_back(keys)
    with pytest.raises(CoreError):
        scheduler.take_back(keys)
    others = block_keys("", "", [2, 2, 2, 2, 1, 1, 1, 1], 2)
    scheduler.note_on_peer(others, 3)
    scheduler.note_peer_rate(3, 1e8)
    assert scheduler.adopt_session("other", [2, 2, 2, 2, 1, 1, 1, 1])
    assert scheduler.pull_session("other") == 4
    pulled = scheduler.schedule(1.0)
    assert pulled.move_peers.tolist() == [3] * 4
    scheduler.complete_moves([], pulled.move_ids.tolist())
    scheduler.forget_peer(3)
    for wrong in (-1, 64):
        with pytest.raises(ValueError, match="no peer"):
            scheduler.note_on_peer(others, wrong)
    scheduler.close()
    assert b"secret" not in path.read_bytes()
    assert replay(path).is_identical


def test_a_record_is_never_written_over_another_file(record: Path, tmp_path: Path) -> None:
    before = record.read_bytes()
    with pytest.raises(ValueError, match="exists already"):
        write_record(record)
    assert record.read_bytes() == before
    with pytest.raises(ValueError, match="there is no folder"):
        write_record(tmp_path / "no" / "such")


def test_a_scheduler_that_is_collected_closes_its_record(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(scheduler_recipe(), tmp_path / "decisions")
    live(scheduler, 0, 5)
    del scheduler
    gc.collect()
    assert replay(tmp_path / "decisions").ending == "closed"


def run_child(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    start = (
        "import os, signal, sys, resource\n"
        "import numpy as np\n"
        "from pathlib import Path\n"
        "from fakes.recorded_histories import live, scheduler_recipe\n"
        "from schedcore.record.recording_scheduler import RecordingScheduler\n"
        "scheduler = RecordingScheduler(scheduler_recipe(), Path(sys.argv[1]))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", start + code, str(path)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def test_a_killed_process_leaves_everything_up_to_the_plan_it_was_executing(tmp_path: Path) -> None:
    code = "live(scheduler, 0)\nscheduler.schedule(1e6)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    assert run_child(code, tmp_path / "killed").returncode == -signal.SIGKILL
    calls = read_calls(tmp_path / "killed")
    assert isinstance(calls[-1], ScheduleCall)
    assert calls[-1].now == 1e6
    result = replay(tmp_path / "killed")
    assert (result.is_identical, result.ending) == (True, "open")


def test_an_exiting_process_closes_its_record(tmp_path: Path) -> None:
    assert run_child("live(scheduler, 0)\nsys.exit(3)\n", tmp_path / "exited").returncode == 3
    assert replay(tmp_path / "exited").ending == "closed"


def test_a_full_disk_ends_the_record_not_the_scheduler(tmp_path: Path) -> None:
    code = (
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))\n"
        "decisions = live(scheduler, 0, 200)\n"
        "assert decisions == live(scheduler_recipe().build(), 0, 200)\n"
        "print('decided', len(decisions))\n"
    )
    child = run_child(code, tmp_path / "full")
    assert child.returncode == 0, child.stderr
    assert "decided" in child.stdout
    assert "ends here: " in child.stderr
    assert (tmp_path / "full").stat().st_size == 4000
    assert replay(tmp_path / "full").is_identical


def test_a_live_record_can_be_read_before_each_step_is_executed(tmp_path: Path) -> None:
    scheduler = RecordingScheduler(scheduler_recipe(), tmp_path / "decisions")
    scheduler.add_request(1, [1, 2], max_tokens=3)
    for step in itertools.count(1):
        plan = scheduler.schedule(float(step))
        if not plan:
            break
        assert replay(tmp_path / "decisions").num_steps == step
        scheduler.commit(np.array([0], np.int32), float(step))
    assert replay(tmp_path / "decisions").num_output_tokens == 3

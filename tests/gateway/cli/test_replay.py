"""`hocket simulate --replay`, from its command line to what it prints."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest

from fakes.recorded_histories import read_calls, rewrite, write_record
from gateway.cli.main import main
from schedcore.record.decision_record import AddCall, Call


@pytest.fixture
def record(tmp_path: Path) -> Path:
    return write_record(tmp_path / "decisions [today]", policy="priority")


def replay(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout, stderr."""
    status = main(["simulate", "--replay", str(path), *arguments])
    printed = capsys.readouterr()
    return status, " ".join(printed.out.split()), printed.err


def refused_instead(calls: list[Call]) -> list[Call]:
    index = next(i for i, call in enumerate(calls) if isinstance(call, AddCall) and call.result == "OK")
    calls[index] = msgspec.structs.replace(calls[index], result="QUEUE_FULL")
    return calls


def test_identical_decisions_are_a_success(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = replay(capsys, record)
    assert status == 0
    assert "decisions │ identical" in out
    assert "policy │ priority" in out
    assert "First difference" not in out
    assert "Note" not in out


def test_a_difference_is_shown_and_is_the_exit_status(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    altered = rewrite(record, tmp_path / "altered", refused_instead)
    status, out, _ = replay(capsys, altered)
    assert status == 1
    assert "decisions │ DIFFERENT" in out
    assert re.search(r"First difference: step \d+, call \d+, add_request\(\d+\) recorded: QUEUE_FULL replayed: OK", out)


def test_programs_get_json(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = replay(capsys, record, "--json")
    found = json.loads(out)
    assert status == 0
    assert (found["is_identical"], found["difference"], found["ending"]) == (True, None, "closed")
    assert found["num_calls"] == len(read_calls(record))
    altered = rewrite(record, tmp_path / "altered", refused_instead)
    status, out, _ = replay(capsys, altered, "--json")
    assert status == 1
    assert json.loads(out)["difference"]["recorded"] == "QUEUE_FULL"


def test_a_record_without_its_end_is_replayed_and_said_to_be_cut_off(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record.write_bytes(record.read_bytes()[:-20])
    status, out, _ = replay(capsys, record)
    assert status == 0
    assert "as a crash leaves it" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trace", "a.csv"], "does not go with --trace"),
        (["--offline", "a.csv"], "does not go with --offline"),
        (["--lengths", "1:1"], "does not go with --lengths"),
    ],
)
def test_a_replay_takes_no_workload(
    record: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = replay(capsys, record, *arguments)
    assert (status, out) == (1, "")
    assert message in err


def test_what_is_no_record_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("arrival_s,input_tokens\n")
    for path, message in ((tmp_path / "text", "is no decision record"), (tmp_path / "nothing", "no such file")):
        status, out, err = replay(capsys, path)
        assert (status, out) == (1, "")
        *_, last = err.strip().splitlines()
        assert last.startswith("hocket simulate: ")
        assert message in last


def test_policies_are_compared_with_what_was_recorded(record: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = replay(capsys, record, "--policy", "fcfs", "--policy", "priority:max_num_seqs=1")
    assert status == 0
    assert "'recorded' was measured, the others simulated" in out
    assert "priority:max_num_seqs=1" in out
    assert "TTFT p50 / p99 (ms)" in out
    found = json.loads(replay(capsys, record, "--policy", "fcfs", "--json")[1])
    assert list(found["courses"]) == ["recorded", "fcfs"]
    assert [course["is_simulated"] for course in found["courses"].values()] == [False, True]
    assert found["step_error"]["num_samples"] > 0


def test_what_cannot_be_served_again_is_said(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    altered = rewrite(record, tmp_path / "altered", refused_instead)
    short = write_record(tmp_path / "short", num_turns=3)
    for arguments, message in (
        ((altered, "--policy", "fcfs"), "cannot be served again"),
        ((record, "--policy", "astrology"), "policy"),
        ((record, "--policy", "fcfs:colour=1"), "colour=1"),
        ((short, "--policy", "fcfs"), "at least 20 samples"),
    ):
        status, out, err = replay(capsys, *arguments)
        assert (status, out) == (1, "")
        assert message in err.strip().splitlines()[-1]

"""Digests of random histories: equal for equal decisions, and for these only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.proofs.decision_digests import CONFIGURATIONS, History, main


def test_a_history_is_the_same_each_time_and_another_with_another_seed() -> None:
    first, again, other = (History("hocket", CONFIGURATIONS["disk"], seed).digest() for seed in (1, 1, 2))
    assert first == again != other


def test_another_decision_gives_another_digest() -> None:
    assert History("fcfs", {}, 0).digest() != History("priority", {}, 0).digest()


@pytest.mark.parametrize(("other", "status"), [("x", 0), ("y", 1)])
def test_two_files_are_compared(tmp_path: Path, other: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for path, digest in zip(files, ("x", other), strict=True):
        path.write_text(json.dumps({"fcfs/plain/0": digest}))
    assert main(["--compare", *map(str, files)]) == status
    assert f"{status} of 1 histories differ" in capsys.readouterr().out

"""Which workload the options of load.py make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.run.load import make_open_workload, parse_arguments

URL = ["http://localhost:8000", "--vocab-size", "100"]
TRACE = """session_id,arrival_s,input_tokens,output_tokens
a,0.0,10,5
a,7.0,30,5
,8.0,20,6
,9.0,5000,6
"""


def workload(*options: str) -> Any:
    return make_open_workload(parse_arguments([*URL, *options]))


@pytest.fixture
def trace(tmp_path: Path) -> str:
    (tmp_path / "day.csv").write_text(TRACE)
    return str(tmp_path / "day.csv")


def test_fixed_lengths_arrive_by_the_process() -> None:
    made = workload("--arrivals", "uniform:4", "--num-requests", "3", "--prompt-len", "7", "--output-len", "8")
    assert made.arrival_s.tolist() == [0.25, 0.5, 0.75]
    assert (made.input_tokens.tolist(), made.output_tokens.tolist()) == ([7] * 3, [8] * 3)


def test_a_trace_comes_as_recorded_without_what_does_not_fit(trace: str) -> None:
    made = workload("--trace", trace)
    assert made.arrival_s.tolist() == [0.0, 7.0, 8.0]
    assert made.input_tokens.tolist() == [10, 30, 20]


def test_sessions_of_a_trace_arrive_by_the_process_and_turns_after_a_pause(trace: str) -> None:
    made = workload("--trace", trace, "--arrivals", "uniform:2", "--think-s", "3")
    assert made.follows.tolist() == [-1, 0, -1]
    assert np.delete(made.arrival_s, 1).tolist() == [0.5, 1.0]
    assert made.arrival_s[1] > 0


@pytest.mark.parametrize("options", [[], ["--concurrency", "2", "--arrivals", "poisson:1"]])
def test_a_load_is_open_or_closed(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments([*URL, *options])
    assert "either --concurrency, or --arrivals" in capsys.readouterr().err

"""bench/studies/recorded/traces.py from end to end, on a few made-up rows."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.studies.recorded import traces
from schedcore.simulation.simulator import simulate
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import make_workload

ROWS = [(0.5 * i, f"s{i // 3}", 200 + 40 * (i % 3), 5 + i % 4) for i in range(30)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, has_times in (("azure23_conv", True), ("agent_miniswe", False), ("humaneval", False)):
        lines = ["arrival_s,session_id,turn,input_tokens,output_tokens"]
        lines += [f"{at if has_times else ''},{session},,{n},{m}" for at, session, n, m in ROWS]
        (tmp_path / f"{name}.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return tmp_path


def test_every_trace_of_the_folder_is_served_by_every_setting(folder: Path, tmp_path: Path) -> None:
    document = traces.build(folder, traces.Scale(num_requests=24, num_seeds=2, loads=(0.8,)), 1, None)
    document.save(tmp_path, 1.0, "python -m bench.studies.some")
    settings, gains, *tables = document.tables
    assert len(settings.rows) == len(traces.SETTINGS)
    assert [row[0] for row in gains.rows] == ["azure23_conv", "agent_miniswe", "humaneval"]
    assert [table.title for table in tables] == ["azure23_conv", "agent_miniswe", "humaneval"]
    assert all([row[1] for row in table.rows] == [s.name for s in traces.SETTINGS] for table in tables)
    assert "Simulated, not measured" in (tmp_path / "traces.md").read_text()


def test_arrivals_are_as_frequent_as_asked(folder: Path) -> None:
    for source in traces.SOURCES:
        path = folder / f"{source.name}.csv.gz"
        if not path.is_file():
            continue
        rows = traces.window(traces.trace_of(path), source, 24, 0)
        workload = traces.at_rate(source, rows, 10.0, 0)
        begin = workload.arrival_s[workload.follows < 0]
        assert len(workload) == 24
        assert 0.3 < 2.4 / begin.max() < 3, source.name


def test_requests_without_targets_are_judged_as_if_they_had_them() -> None:
    workload = make_workload(np.zeros(40), Prompts.unrelated(np.full(40, 500, np.int32)), [20] * 40)
    told = workload.with_targets(1000, 20)
    engine = replace(traces.FCFS.engine(traces.base_engine()), draw_errors=False)
    counted = simulate(told, engine, keep_token_times=True)
    judged = traces.judge(simulate(workload, engine, keep_token_times=True), told)
    assert counted.records.num_itl_violations.sum() > 0
    assert (judged.records.num_itl_violations == counted.records.num_itl_violations).all()


def test_who_is_served_behind_a_later_equal_is_overtaken() -> None:
    workload = make_workload(np.arange(4.0), Prompts.unrelated(np.array([50, 50, 60, 50], np.int32)), [5] * 4)
    result = simulate(workload, traces.FCFS.engine(traces.base_engine()))
    assert traces.num_overtaken(result) == 0
    late = replace(result.records, scheduled_s=np.array([5.0, 1.0, 9.0, 4.0]))
    assert traces.num_overtaken(replace(result, records=late)) == 1

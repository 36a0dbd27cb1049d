"""bench/studies/closed_loop/crowds.py from end to end, and what it is there to show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.studies.closed_loop import crowds
from bench.studies.measurement import token_gaps
from schedcore.simulation.simulator import simulate

HOCKET, FCFS = crowds.SETTINGS
CROWD = crowds.Crowd(64, 128, 128)


def test_every_crowd_is_served_by_every_setting(tmp_path: Path) -> None:
    scale = crowds.Scale((crowds.Crowd(3, 20, 4), crowds.Crowd(2, 10, 8)), num_rounds=6, num_seeds=2)
    document = crowds.build(scale, 1, None)
    document.save(tmp_path, 1.0, "python -m bench.studies.some")
    settings, *tables = document.tables
    assert len(settings.rows) == len(crowds.SETTINGS)
    assert [table.title for table in tables] == [*crowds.PROFILES]
    assert all([row[2] for row in table.rows] == 2 * [s.name for s in crowds.SETTINGS] for table in tables)
    assert "Simulated, not measured" in (tmp_path / "closed_loop.md").read_text()


def test_a_client_sends_its_next_request_when_the_last_one_has_ended() -> None:
    crowd = crowds.Crowd(3, 20, 4)
    engine = HOCKET.engine(crowds.engine("random-100m_avx2"))
    result = simulate(crowds.workload(crowd, 5, 0), engine, keep_token_times=True)
    records = result.records
    assert (records.arrival_s[3:] == records.last_token_s[:-3]).all()
    request, gap_s = token_gaps(result)
    assert (np.bincount(request, minlength=15) == records.num_output_tokens - 1).all()
    assert np.bincount(request, gap_s) == pytest.approx(records.last_token_s - records.first_token_s)


def test_first_tokens_of_a_crowd_that_nearly_fills_the_promise_come_all_the_same() -> None:
    ours = crowds.run_one("random-100m_avx2", HOCKET, CROWD, 8, 0)
    others = crowds.run_one("random-100m_avx2", FCFS, CROWD, 8, 0)
    assert ours.ttft_p50_s < 2.5
    assert ours.itl_p99_ms < 0.6 * others.itl_p99_ms

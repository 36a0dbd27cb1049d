from __future__ import annotations

from bench.run.parts import core, core_contention


def test_a_row_per_size_beside_the_peer_s_numbers() -> None:
    timings = [core.measure(n, num_steps=3, policy="priority", num_layers=8) for n in (1, 8, 256)]
    assert all(0 < t.schedule_p50 <= t.schedule_p99 and 0 < t.commit_p50 <= t.commit_p99 for t in timings)
    rows = core.table(timings).splitlines()[3:]
    assert [int(row.split("|")[0]) for row in rows] == [1, 8, 256]
    assert rows[1].split("|")[5].split() == ["59", "27"]


def test_contention_keeps_so_many_requests_alive() -> None:
    timing = core_contention.measure(64, num_steps=20, policy="hocket")
    assert timing.num_live == 64
    assert timing.mean_running > 0
    assert timing.mean_waiting > 0
    assert "hocket" in core_contention.table([timing], "hocket")

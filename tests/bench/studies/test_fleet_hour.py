"""bench/studies/fleets/hour.py from end to end, on a cut of its trace."""

from __future__ import annotations

from pathlib import Path

from bench.studies.fleets import hour

TRACE = Path(__file__).resolve().parents[2] / "data" / "mooncake_conversation_cut.csv"


def test_each_routing_serves_the_same_hour(tmp_path: Path) -> None:
    document = hour.build(TRACE, hour.Scale(num_nodes=2, num_seeds=2), 1, None)
    document.save(tmp_path, 1.0, "python -m bench.studies.some")
    ratios, table = document.tables
    assert [row[0] for row in table.rows] == list(hour.NAMES)
    assert [row[0] for row in ratios.rows] == ["round robin", "least loaded", "sticky"]
    assert len({row[-1] for row in table.rows}) == 1, "as many requests for everybody"
    assert "engines by rate" in (tmp_path / "fleet_hour.md").read_text()

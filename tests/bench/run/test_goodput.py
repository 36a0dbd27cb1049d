"""The answer of a search, and its table."""

from __future__ import annotations

from bench.lib.load.load_report import summarize
from bench.lib.load.slo import Attainment, Targets
from bench.run.goodput import GoodputResult, Measurement, best_rate, describe


def measurement(server: str, rate: float, both: float) -> Measurement:
    return Measurement(server, rate, Attainment(10, both, both, both, rate * both), summarize([]), 0.01)


MEASURED = [
    measurement("ours", 1.0, 1.0),
    measurement("peer", 1.0, 0.95),
    measurement("ours", 4.0, 0.92),
    measurement("peer", 2.0, 0.3),
    measurement("ours", 8.0, 0.1),
]


def test_best_rate_is_the_highest_that_held_the_level() -> None:
    assert best_rate(MEASURED, "ours", 0.9) == 4.0
    assert best_rate(MEASURED, "peer", 0.9) == 1.0
    assert best_rate(MEASURED, "peer", 0.99) == 0.0


def test_a_lucky_measurement_above_a_failed_one_does_not_count() -> None:
    lucky = [*MEASURED, measurement("peer", 3.0, 0.95)]
    assert best_rate(lucky, "peer", 0.9) == 1.0


def test_table_has_a_row_per_measurement_and_the_ratio() -> None:
    best = {name: best_rate(MEASURED, name, 0.9) for name in ("ours", "peer")}
    result = GoodputResult("tiny", Targets(1000.0, 150.0), 0.9, 1.0, 60.0, 128, 128, [], MEASURED, best)
    text = describe(result)
    rows = [[column.strip() for column in line.strip("|").split("|")] for line in text.splitlines() if "|" in line]
    assert ["ours", "4.00", "92", "92", "92", "3.68", "-", "-", "-", "-", "1%"] in rows
    assert len(rows) == 2 + len(MEASURED)
    assert "ours: 4.00 requests/s at 90%" in text
    assert "ours over peer: 4.00x" in text

"""What the live run of all four papers prints: means of a setting's runs, and how often what acted."""

from __future__ import annotations

from bench.lib import results
from bench.run.all_four import (
    ALL,
    COUNTERS,
    Counts,
    Measurement,
    acts_of,
    counts_between,
    describe,
    mean_of,
    parse_arguments,
)

NOTHING = Counts({}, {}, {}, {}, 0.0, 0.0)


def measured(setting: str = ALL.name, attained: float = 1.0, counts: Counts = NOTHING) -> Measurement:
    return Measurement(setting, 100, attained, 500.0, 60.0, 40, 100.0, 300.0, 0.5, 2.5, 0.75, counts, 0.01, 0)


def test_rows_are_means_over_the_runs_of_a_setting() -> None:
    row = mean_of([measured(attained=0.9), measured(attained=0.8)])
    assert row == [ALL.name, "85.0", "500 / 60", "100 / 300", "50 / 75", "2.50", "1%", "0"]


def test_counts_are_of_the_run_and_by_label() -> None:
    before = {name: dict[str, float]() for name in COUNTERS} | {"hocket_restores_total": {"": 3.0}}
    after = before | {
        "hocket_class_preemptions_total": {"online": 4.0, "offline": 2.0},
        "hocket_solver_steps_total": {"recomputes": 5.0, "not_allowed": 90.0},
        "hocket_restores_total": {"": 10.0},
    }
    counts = counts_between(before, after)
    assert (counts.restores, counts.preemptions["online"]) == (7.0, 4.0)
    acts = acts_of([measured(counts=counts), measured()])
    assert acts == [ALL.name, "online 2, offline 1", "-", "recomputes 2", "-", "4 / 0"]


def test_the_page_has_a_row_per_setting_that_was_measured_and_no_more_columns_than_fit() -> None:
    machine = results.Machine("a processor", 2, 1 << 30, 0.1)
    page = describe([measured("fcfs"), measured()], parse_arguments([]), machine, "2026-11-26", "command")
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert [line.split("|")[1].strip() for line in tables[2:4]] == [ALL.name, "fcfs"]
    assert max(line.count("|") - 1 for line in tables) <= 8

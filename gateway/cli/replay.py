"""`hocket simulate --replay FILE`: does today's scheduler decide as the recorded engine did?

With policies: how would the recorded requests have fared under them?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.simulation_options import PolicyChoice, number, percent, progress_bar, write_json
from schedcore.latency.calibration import Calibration
from schedcore.record.recorded_requests import read_recorded
from schedcore.record.replay import Replay, replay
from schedcore.simulation.report import Distribution
from schedcore.simulation.what_if import Course, Served, recorded_course, serve_again

IDENTICAL, DIFFERENT = 0, 1  # exit statuses

_ENDINGS = {
    "open": "the record is not closed: the engine still runs, or it was killed",
    "cut off": "the record ends within a call, as a crash leaves it; {} bytes were not read",
    "damaged": "the record is damaged; its last {} bytes were not read",
}


RECORDED = "recorded"  # label of what was measured


def run_replay(path: Path, choices: Sequence[PolicyChoice], *, as_json: bool) -> int:
    """The exit status. Raises ValueError, OSError."""
    return run_what_if(path, choices, as_json=as_json) if choices else run_comparison(path, as_json=as_json)


def run_comparison(path: Path, *, as_json: bool) -> int:
    with progress_bar(f"replay {path.name}") as report:
        result = replay(path, report)
    if as_json:
        write_json(result)
    else:
        print_replay(result, Console())
    return IDENTICAL if result.is_identical else DIFFERENT


def print_replay(result: Replay, console: Console) -> None:
    table = Table(title=Text(f"replay of {result.record}"))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", overflow="fold")
    for label, value in _rows(result):
        table.add_row(label, value)
    console.print(table)
    for line in _remarks(result):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def _rows(result: Replay) -> list[tuple[str, str]]:
    return [
        ("decisions", "identical" if result.is_identical else "DIFFERENT"),
        ("policy", result.policy),
        ("steps", str(result.num_steps)),
        ("requests", f"{result.num_requests} accepted, {result.num_refused} refused, {result.num_aborts} aborted"),
        ("output tokens", str(result.num_output_tokens)),
        ("preemptions", str(result.num_preemptions)),
        ("recorded time (s)", f"{result.duration_s:.1f}"),
        ("calls", str(result.num_calls)),
    ]


def _remarks(result: Replay) -> list[str]:
    if (difference := result.difference) is not None:
        return [
            f"First difference: step {difference.step}, call {difference.call}, {difference.what}",
            f"  recorded: {difference.recorded}",
            f"  replayed: {difference.replayed}",
        ]
    if result.ending in _ENDINGS:
        return [f"Note: {_ENDINGS[result.ending].format(result.num_unread_bytes)}."]
    return []


def run_what_if(path: Path, choices: Sequence[PolicyChoice], *, as_json: bool) -> int:
    with progress_bar(f"read {path.name}") as report:
        recorded, result = read_recorded(path, report)
    if not result.is_identical:
        print_replay(result, Console(stderr=True))
        raise ValueError(f"{path} cannot be served again: this version decides otherwise, so its steps are not known")
    fitted = recorded.fit()
    explained = recorded.explained_ratio(fitted)
    courses = {RECORDED: recorded_course(recorded, result)}
    for choice in choices:
        with progress_bar(choice.label) as report:
            courses[choice.label] = serve_again(recorded, fitted, choice.policy, choice.options, report)
    if as_json:
        error = fitted.held_out_error
        write_json({"record": str(path), "step_error": error, "explained_ratio": explained, "courses": courses})
    else:
        print_courses(path, fitted, explained, courses, Console())
    return IDENTICAL


def print_courses(
    path: Path, fitted: Calibration, explained: float, courses: dict[str, Course], console: Console
) -> None:
    error = fitted.held_out_error
    fit = f"mean error {percent(error.mean)} on {error.num_samples} held out, {percent(explained)} of all step time"
    remark = f"{path.name}: '{RECORDED}' was measured, the others simulated, with step times like the record's ({fit})."
    console.print(remark, markup=False, highlight=False)
    for of_class in courses[RECORDED].classes:
        table = _columns(f"{of_class.request_class}, {of_class.num_requests} requests", courses)
        for label, cell in _class_rows():
            found = [
                c for course in courses.values() for c in course.classes if c.request_class == of_class.request_class
            ]
            table.add_row(label, *map(cell, found))
        console.print(table)
    table = _columns("engine", courses)
    for name, show in _engine_rows():
        table.add_row(name, *map(show, courses.values()))
    console.print(table)


def _columns(title: str, courses: dict[str, Course]) -> Table:
    table = Table(title=title)
    table.add_column(no_wrap=True)
    for label in courses:
        table.add_column(Text(label), justify="right", overflow="fold")
    return table


def _class_rows() -> list[tuple[str, Callable[[Served], str]]]:
    return [
        ("SLO attainment", lambda s: percent(s.slo_attainment_ratio)),
        ("TTFT p50 / p99 (ms)", lambda s: _percentiles(s.ttft_ms)),
        ("ITL p50 / p99 (ms)", lambda s: _percentiles(s.itl_ms)),
        ("E2E p50 / p99 (ms)", lambda s: _percentiles(s.e2e_ms)),
        ("prompt from cache", lambda s: percent(s.cached_prompt_ratio)),
        ("refused", lambda s: str(s.num_refused)),
    ]


def _engine_rows() -> list[tuple[str, Callable[[Course], str]]]:
    return [
        ("time (s)", lambda c: f"{c.duration_s:.1f}"),
        ("output (tokens/s)", lambda c: f"{c.output_tokens_per_second:.0f}"),
        ("steps", lambda c: str(c.num_steps)),
        ("step (ms)", lambda c: number(c.mean_step_ms)),
        ("preemptions", lambda c: str(c.num_preemptions)),
    ]


def _percentiles(distribution: Distribution | None) -> str:
    return "–" if distribution is None else f"{distribution.p50:.1f} / {distribution.p99:.1f}"


def check_alone(args: argparse.Namespace) -> None:
    """Raises ValueError if options ask for another workload."""
    for name in ("trace", "lengths", "arrivals", "offline", "plot"):
        if getattr(args, name) is not None:
            raise ValueError(f"--replay repeats what was recorded: it does not go with --{name}")

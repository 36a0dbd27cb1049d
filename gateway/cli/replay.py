"""`hocket simulate --replay FILE`: does today's scheduler decide as the recorded engine did?"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.cli.simulation_options import progress_bar, write_json
from schedcore.simulation.replay import Replay, replay

IDENTICAL, DIFFERENT = 0, 1  # exit statuses

_ENDINGS = {
    "open": "the record is not closed: the engine still runs, or it was killed",
    "cut off": "the record ends within a call, as a crash leaves it; {} bytes were not read",
    "damaged": "the record is damaged; its last {} bytes were not read",
}


def run_replay(path: Path, *, as_json: bool) -> int:
    """The exit status. Raises ValueError, OSError."""
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


def check_alone(args: argparse.Namespace) -> None:
    """Raises ValueError if options ask for more than the replay."""
    for name in ("trace", "lengths", "arrivals", "offline", "plot", "policy"):
        if getattr(args, name) is not None:
            raise ValueError(f"--replay repeats what was recorded: it does not go with --{name}")

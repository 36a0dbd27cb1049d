"""Each kind of results file becomes a plot; others are left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.run.plots import plot_file

MACHINE = {"cpu": "Some CPU (avx2)"}
REPORT = {"output_tokens_per_second": 100.0, "tpot_ms": {"p99": 5.0}}
MODELS: list[dict[str, Any]] = [
    {"model": "m", "cells": [{"server": "ours", "concurrency": c, "report": REPORT} for c in (1, 8)]},
    {"model": "m", "level": 0.9, "measurements": [{"server": "ours", "rate": 1.0, "attainment": {"both": 1.0}}]},
    {
        "model": "m",
        "options": {},
        "cells": [{"server": "s", "has_offline": True, "num_jobs_done": 3, "online": REPORT}],
    },
]


@pytest.mark.parametrize(("model", "label"), [*zip(MODELS, ["in flight", "met its targets", "jobs done"], strict=True)])
def test_results_become_a_plot(tmp_path: Path, model: dict[str, Any], label: str) -> None:
    document = {"date": "2026-01-01T00:00:00", "commit": "abc", "machine": MACHINE, "models": [model]}
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(document))
    assert plot_file(tmp_path / "run.json", tmp_path / "run.svg")
    assert label in (tmp_path / "run.svg").read_text()


def test_other_files_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text('{"models": []}')
    assert not plot_file(tmp_path / "other.json", tmp_path / "other.svg")

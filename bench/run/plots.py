"""Plots of what serve.py, goodput.py and online_offline.py have written: one SVG beside each JSON file.

python -m bench.run.plots bench/results/*.json [--output FOLDER]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANEL_INCHES = (4.2, 3.0)


def plot_file(source: Path, target: Path) -> bool:
    """False if the file is none of ours, or holds no model yet."""
    document = msgspec.json.decode(source.read_bytes())
    models = document.get("models") or []
    draw = next((draw for key, draw in _PANELS.items() if models and key in models[0]), None)
    if draw is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "hocket", "font.size": 9}):
        width, height = PANEL_INCHES
        figure, axes = plt.subplots(1, len(models), figsize=(width * len(models), height), squeeze=False)
        for axis, model in zip(axes[0], models, strict=True):
            draw(axis, model)
            axis.set_title(model["model"])
            axis.set_ylim(bottom=0)
            axis.legend()
        figure.suptitle(f"{document['machine']['cpu'].split(' (')[0]}, {document['date'][:10]}, {document['commit']}")
        figure.tight_layout()
        figure.savefig(target, metadata={"Date": None})
        plt.close(figure)
    return True


def _servers(rows: Sequence[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["server"] for row in rows))


def _throughput(axis: Axes, model: dict[str, Any]) -> None:
    cells = model["cells"]
    for server in _servers(cells):
        own = sorted(
            (c["concurrency"], c["report"]["output_tokens_per_second"]) for c in cells if c["server"] == server
        )
        axis.plot(*zip(*own, strict=True), marker="o", label=server)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("requests in flight")
    axis.set_ylabel("output tokens/s")


def _attainment(axis: Axes, model: dict[str, Any]) -> None:
    measurements = model["measurements"]
    for server in _servers(measurements):
        own = sorted((m["rate"], m["attainment"]["both"]) for m in measurements if m["server"] == server)
        axis.plot(*zip(*own, strict=True), marker="o", label=server)
    axis.axhline(model["level"], color="gray", linewidth=0.8, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("requests/s")
    axis.set_ylabel("share that met its targets")


def _mixed(axis: Axes, model: dict[str, Any]) -> None:
    cells = [cell for cell in model["cells"] if cell["has_offline"] and cell["online"]["tpot_ms"]]
    for server in _servers(cells):
        own = [(c["num_jobs_done"], c["online"]["tpot_ms"]["p99"]) for c in cells if c["server"] == server]
        axis.scatter(*zip(*own, strict=True), label=server)
    axis.set_xlim(left=0)
    axis.set_xlabel("offline jobs done")
    axis.set_ylabel("online TPOT p99 (ms)")


_PANELS = {"measurements": _attainment, "options": _mixed, "cells": _throughput}  # by what only they have, in order


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, help="folder (default: beside each file)")
    args = parser.parse_args()
    for source in args.files:
        target = (args.output or source.parent) / f"{source.stem}.svg"
        print(f"{target}" if plot_file(source, target) else f"{source}: nothing to plot")


if __name__ == "__main__":
    main()

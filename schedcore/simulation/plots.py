"""Plots of one or more simulated runs. Needs matplotlib, which hocket does not otherwise use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from schedcore.simulation.report import itl_bins_s
from schedcore.simulation.simulator import Outcome, SimulationResult
from schedcore.types import RequestClass

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")


def save_plot(results: Mapping[str, SimulationResult], path: Path) -> None:
    """TTFT and ITL of online requests (of all, if none is online) and the queue over time, one line per run.

    The suffix of the path is the format. The same results give the same bytes. Raises ValueError for another suffix,
    ImportError without matplotlib, OSError.
    """
    check_format(path)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "hocket", "font.size": 9}):
        figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
        for name, result in results.items():
            draw_ttft(axes[0], name, result)
            draw_itl(axes[1], name, result)
            draw_queue(axes[2], name, result)
        for ax in axes:
            ax.grid(alpha=0.3)
        axes[0].legend()
        figure.suptitle(title(results))
        metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
        figure.savefig(path, metadata=metadata)
        plt.close(figure)


def check_format(path: Path) -> None:
    """Raises ValueError."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} must end in one of {', '.join(FORMATS)}")


def title(results: Mapping[str, SimulationResult]) -> str:
    costs = dict.fromkeys(result.engine.cost.name for result in results.values())
    return f"simulated with {', '.join(costs)}"


def draw_ttft(ax: Axes, name: str, result: SimulationResult) -> None:
    records = result.records
    chosen = (records.outcome == Outcome.FINISHED) & _shown(result)
    draw_distribution(ax, name, np.sort((records.first_token_s - records.arrival_s)[chosen]))
    ax.set(xlabel="TTFT (s)", ylabel="share of requests", xscale="log", ylim=(0, 1))


def draw_itl(ax: Axes, name: str, result: SimulationResult) -> None:
    is_online = bool(np.any(result.workload.request_class == RequestClass.ONLINE))
    histogram = result.itl_histograms[RequestClass.ONLINE] if is_online else np.sum(result.itl_histograms, axis=0)
    used = np.flatnonzero(histogram)
    share = np.cumsum(histogram) / max(int(histogram.sum()), 1)
    ax.step(1000 * itl_bins_s(histogram.size)[used], share[used], where="post", label=name)
    ax.set(xlabel="ITL (ms)", ylabel="share of gaps", xscale="log", ylim=(0, 1))


def draw_queue(ax: Axes, name: str, result: SimulationResult) -> None:
    samples = result.samples
    ax.plot(samples.time_s, samples.num_waiting.sum(axis=1), label=name, linewidth=1)
    ax.set(xlabel="time (s)", ylabel="waiting requests")


def draw_distribution(ax: Axes, name: str, values: npt.NDArray[np.float64]) -> None:
    ax.step(values, np.arange(1, values.size + 1) / max(values.size, 1), where="post", label=name)


def _shown(result: SimulationResult) -> npt.NDArray[np.bool_]:
    is_online = result.workload.request_class == RequestClass.ONLINE
    return is_online if is_online.any() else np.ones_like(is_online)

"""Plots of simulated runs and of plans. Needs matplotlib, which hocket does not otherwise use."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from schedcore._core import SimulatedOutcome
from schedcore.api.types import RequestClass
from schedcore.simulation.planning.day import DayReport
from schedcore.simulation.planning.planner import Plan
from schedcore.simulation.report import itl_bins_s
from schedcore.simulation.simulator import SimulationResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")


def save_plot(results: Mapping[str, SimulationResult], path: Path) -> None:
    """TTFT and ITL of online requests (of all, if none is online) and the queue over time, one line per run.

    The suffix of the path is the format. The same results give the same bytes. Raises ValueError for another suffix,
    ImportError without matplotlib, OSError.
    """
    with drawing(path, title(results), columns=3, size=(13, 4)) as axes:
        for name, result in results.items():
            draw_ttft(axes[0], name, result)
            draw_itl(axes[1], name, result)
            draw_queue(axes[2], name, result)
        axes[0].legend()


def save_day_plot(plan: Plan, path: Path) -> None:
    """Online load, online attainment and offline throughput over the day. Raises as save_plot() does.

    Nothing is drawn of a plan without a day.
    """
    if plan.day is None or plan.peak.least is None:
        return
    least = plan.peak.least
    name = f"{plan.model}, {least.num_engines} x ({least.hardware}), {plan.policy}: simulated with {least.cost_model}"
    with drawing(path, name, rows=3, size=(9, 7)) as axes:
        draw_day(axes, plan.day, plan.attainment_target_ratio)


@contextmanager
def drawing(
    path: Path, name: str, *, rows: int = 1, columns: int = 1, size: tuple[float, float]
) -> Iterator[Sequence[Axes]]:
    check_format(path)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"svg.hashsalt": "hocket", "font.size": 9}):
        figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", sharex=rows > 1)
        try:
            yield axes
            for ax in axes:
                ax.grid(alpha=0.3)
            figure.suptitle(name)
            metadata: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(path.suffix, {})
            figure.savefig(path, metadata=metadata)
        finally:
            plt.close(figure)


def check_format(path: Path) -> None:
    """Raises ValueError, ImportError without matplotlib: before anything is simulated."""
    if path.suffix not in FORMATS:
        raise ValueError(f"{path} must end in one of {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise ImportError("plots need matplotlib: pip install matplotlib")


def title(results: Mapping[str, SimulationResult]) -> str:
    costs = dict.fromkeys(result.engine.cost.name for result in results.values())
    return f"simulated with {', '.join(costs)}"


def draw_ttft(ax: Axes, name: str, result: SimulationResult) -> None:
    records = result.records
    chosen = (records.outcome == SimulatedOutcome.FINISHED) & _shown(result)
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


def draw_day(axes: Sequence[Axes], day: DayReport, attainment_target_ratio: float) -> None:
    """Requests per second, attainment and offline tokens per second, an interval each; hours on the last axis."""
    edges = np.array([day.intervals[0].start_s, *(interval.end_s for interval in day.intervals)]) / 3600

    def stairs(ax: Axes, values: Sequence[float | None], label: str) -> None:
        ax.stairs(np.array(values, float), edges, baseline=None, label=label, linewidth=1.5)

    load, attainment, offline = axes
    stairs(load, [i.online_requests_per_second for i in day.intervals], "requests/s")
    load.set(ylabel="online requests/s", ylim=(0, None))
    stairs(attainment, [i.online_attainment_ratio for i in day.intervals], "attained")
    attainment.axhline(attainment_target_ratio, linestyle="--", linewidth=1, color="gray", label="target")
    attainment.set(ylabel="online attainment", ylim=(0, 1.02))
    stairs(offline, [i.offline_prompt_tokens_per_second for i in day.intervals], "prompt")
    stairs(offline, [i.offline_output_tokens_per_second for i in day.intervals], "output")
    offline.set(ylabel="offline tokens/s", xlabel="time (h)", ylim=(0, None), xlim=(edges[0], edges[-1]))
    attainment.legend()
    offline.legend()


def draw_distribution(ax: Axes, name: str, values: npt.NDArray[np.float64]) -> None:
    ax.step(values, np.arange(1, values.size + 1) / max(values.size, 1), where="post", label=name)


def _shown(result: SimulationResult) -> npt.NDArray[np.bool_]:
    is_online = result.workload.request_class == RequestClass.ONLINE
    return is_online if is_online.any() else np.ones_like(is_online)

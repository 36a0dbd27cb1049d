"""What one setting gains over the best of the others, and over the weakest, run by run: seeds are the same for all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.studies.document import Cell, Column, Table
from bench.studies.measurement import Measurement, longest_waits

FAMILY = "hocket"  # settings whose name begins so are ours
# Student's t, 97.5 %, for 1, 2, ... degrees of freedom
T_975 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20)

Get = Callable[[Measurement], float]


@dataclass(frozen=True, slots=True)
class Gain:
    """The mean of differences between runs of one seed, and half the width of its 95 % confidence interval."""

    mean: float
    half_width: float  # NaN for one seed

    def text(self, scale: float, digits: int) -> str:
        if math.isnan(self.half_width):
            return f"{scale * self.mean:+.{digits}f}"
        return f"{scale * self.mean:+.{digits}f} ± {scale * self.half_width:.{digits}f}"


def paired(ours: Sequence[Measurement], others: Sequence[Measurement], get: Get) -> Gain:
    """Of runs in the order of their seeds."""
    differences = np.array([get(a) - get(b) for a, b in zip(ours, others, strict=True)])
    if differences.size < 2:
        return Gain(float(differences.mean()), math.nan)
    t = T_975[min(differences.size - 1, len(T_975)) - 1]
    return Gain(float(differences.mean()), float(t * differences.std(ddof=1) / math.sqrt(differences.size)))


def mean(runs: Sequence[Measurement], get: Get) -> float:
    return float(np.mean([get(run) for run in runs]))


def gain_table(
    title: str, ours: str, cases: Mapping[str, Mapping[str, Sequence[Measurement]]], get: Get, *,
    is_share: bool, counts: Get | None = None, least: float = 0.0,
) -> Table:  # fmt: skip
    """cases: by name, runs by setting. is_share: differences in points. Only settings whose mean of `counts` reaches
    `least` are compared, if it is given."""
    form = "percent" if is_share else "0"
    columns = [
        Column("case"), Column(ours, form), Column("best other"), Column("its", form),
        Column("gain over it, 95 % interval"), Column("gain over it", "times"), Column("over the weakest", "times"),
        Column("longest wait, first token / gap (s); best other's"),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for case, runs in cases.items():
        others = {
            name: found
            for name, found in runs.items()
            if not name.startswith(FAMILY) and (counts is None or mean(found, counts) >= least)
        }
        own = mean(runs[ours], get)
        if not others:
            rows.append([case, own, "none", None, "", None, None, waits(runs[ours])])
            continue
        best = max(others, key=lambda name: mean(others[name], get))
        weakest = min(mean(found, get) for found in others.values())
        gain = paired(runs[ours], others[best], get)
        of_best = mean(others[best], get)
        rows.append([
            case, own, best, of_best, gain.text(100, 1) if is_share else gain.text(1, 0), quotient(own, of_best),
            quotient(own, weakest), f"{waits(runs[ours])}; {waits(others[best])}",
        ])  # fmt: skip
    unit = "Differences are in points." if is_share else "Differences are in tokens per second."
    note = f"{unit} Runs of one seed are compared with each other, and the interval is Student's."
    return Table(title, columns, rows, note)


def quotient(value: float, base: float) -> float:
    return value / base if base > 0 else math.nan


def waits(runs: Sequence[Measurement]) -> str:
    first, gap = longest_waits(runs)
    return f"{first:.1f} / {gap:.1f}"

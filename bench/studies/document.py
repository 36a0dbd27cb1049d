"""A study's result: tables and panels, as Markdown, CSV, PNG and JSON."""

from __future__ import annotations

import csv
import math
import re
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.studies.measurement import Spread

ROOT = Path(__file__).resolve().parents[2]
Cell = str | float | Spread | None
MAX_SHOWN = 8  # columns of a table on a page; all of them are in a CSV file beside it

A100_LIMITS = (
    "The profile is fitted to kernel times composed from published tables, probably those of 80 GB cards, whose memory "
    "is a quarter faster than a 40 GB card's; sampling, launching kernels, HTTP and the scheduler's own time are not "
    "in it. Ratios between settings are what to look at, not absolute rates."
)


ERRORS_DRAWN = (
    "True step times are not what the scheduler believes: each differs from the cost model by an error drawn from the "
    "distribution in its profile, which holds for 8 steps on average, and the scheduler learns from what it measures, "
    "as it does live. For these profiles the distribution comes from the published errors of the fit (mean about 3 %, "
    "95th percentile 8 to 10 %; the shape between and beyond is assumed); seeds of errors are those of the arrivals, "
    "the same for every setting. Lengths of answers are the trace's, and the scheduler is told none of them."
)


@dataclass(frozen=True, slots=True)
class Column:
    """format: percent, times, or the number of digits after the point. is_aside: gives way in a wide table."""

    name: str
    format: str = "2"
    is_aside: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    note: str = ""  # below the table

    @property
    def is_wide(self) -> bool:
        return len(self.columns) > MAX_SHOWN

    def texts(self) -> list[list[str]]:
        """The header and the rows, all columns."""
        body = [[text(cell, c.format) for cell, c in zip(row, self.columns, strict=True)] for row in self.rows]
        return [[column.name for column in self.columns], *body]

    def markdown(self, all_columns: str = "") -> str:
        """With at most MAX_SHOWN columns; `all_columns` is the file that has them all."""
        shown = [i for i, c in enumerate(self.columns) if not (self.is_wide and c.is_aside)][:MAX_SHOWN]
        header, *body = [[row[i] for i in shown] for row in self.texts()]
        widths = [max(3, *(len(row[i]) for row in (header, *body))) for i in range(len(header))]
        is_text = [all(isinstance(row[i], str) for row in self.rows) for i in shown]

        def line(cells: Sequence[str]) -> str:
            padded = (c.ljust(w) if left else c.rjust(w) for c, w, left in zip(cells, widths, is_text, strict=True))
            return "| " + " | ".join(padded) + " |"

        rule = ["-" * w if left else "-" * (w - 1) + ":" for w, left in zip(widths, is_text, strict=True)]
        table = "\n".join((line(header), line(rule), *map(line, body)))
        rest = (
            f"All {len(self.columns)} columns: [{all_columns}]({all_columns})." if self.is_wide and all_columns else ""
        )
        below = " ".join(filter(None, (rest, self.note)))
        return f"### {self.title}\n\n{table}\n" + (f"\n{wrapped(below)}\n" if below else "")


def wrapped(paragraph: str) -> str:
    """For a page: short code stays in one line; no number or sign begins a line, where it would begin a list."""
    glued = re.sub(r"`[^`]{1,80}`", lambda code: code[0].replace(" ", "\0"), paragraph)
    glued = re.sub(r" (?=(?:[-+*>#|]|\d+[.)]) )", "\0", glued)
    return textwrap.fill(glued, 120, break_long_words=False, break_on_hyphens=False).replace("\0", " ")


def text(cell: Cell, form: str) -> str:
    if isinstance(cell, str):
        return cell
    if isinstance(cell, Spread):
        mean = text(cell.mean, form)
        if cell.deviation == 0 or math.isnan(cell.deviation) or mean == "–":
            return mean
        return f"{mean} ± {text(cell.deviation, form).removesuffix('×')}"
    if cell is None or math.isnan(cell):
        return "–"
    if form == "percent":
        return f"{100 * cell:.1f}"
    if form == "times":
        return f"{cell:.2f}×"
    return f"{cell:.{int(form)}f}"


@dataclass(frozen=True, slots=True)
class Series:
    name: str
    x: Sequence[float]
    y: Sequence[float]


@dataclass(frozen=True, slots=True)
class Panel:
    """Lines, or with `ticks` bars: one group per tick, one bar per series."""

    title: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    ticks: Sequence[str] = ()
    y_limit: float | None = None


@dataclass
class Document:
    name: str  # of the files
    title: str
    about: list[str] = field(default_factory=list)  # paragraphs
    left_out: list[str] = field(default_factory=list)  # settings that the core does not know
    cost_models: set[str] = field(default_factory=set)
    tables: list[Table] = field(default_factory=list)
    panels: list[Panel] = field(default_factory=list)
    engines: str = "the real scheduler"  # what was simulated

    def markdown(self, run: str) -> str:
        parts = [f"# {self.title}\n", *(f"{wrapped(paragraph)}\n" for paragraph in (run, *self.about))]
        if self.left_out:
            parts.append("**Left out**, since this build of the core does not know them:\n")
            parts.append("\n".join(f"- {sentence}" for sentence in self.left_out) + "\n")
        if self.panels:
            parts.append(f"![{self.title}]({self.name}.png)\n")
        return "\n".join((*parts, *(table.markdown(self.csv_name(i)) for i, table in enumerate(self.tables))))

    def csv_name(self, table: int) -> str:
        return f"{self.name}_{table + 1}.csv"

    def to_json(self) -> bytes:
        tables = [
            {
                "title": table.title,
                "columns": [column.name for column in table.columns],
                "rows": [[plain(cell) for cell in row] for row in table.rows],
            }
            for table in self.tables
        ]
        cost_models = sorted(self.cost_models)
        found = {"name": self.name, "is_simulated": True, "cost_models": cost_models, "left_out": self.left_out}
        return msgspec.json.format(msgspec.json.encode({**found, "tables": tables}), indent=2)

    def save(self, folder: Path, seconds: float, command: str | None = None) -> list[Path]:
        """Returns the files written. Raises OSError."""
        folder.mkdir(parents=True, exist_ok=True)
        page = folder / f"{self.name}.md"
        page.write_text(self.markdown(self.run_line(command or command_line(), seconds)))
        files = [page]
        for i, table in enumerate(self.tables):
            if table.is_wide:
                files.append(folder / self.csv_name(i))
                with files[-1].open("w", newline="") as file:
                    csv.writer(file, lineterminator="\n").writerows(table.texts())
        if not self.panels:
            return files
        draw(self.panels, folder / f"{self.name}.png", f"simulated with {', '.join(sorted(self.cost_models))}")
        return [*files, folder / f"{self.name}.png"]

    def run_line(self, command: str, seconds: float) -> str:
        """What the numbers are, and how to get them again."""
        when = datetime.now(UTC).strftime("%Y-%m-%d")
        costs = ", ".join(f"`{name}`" for name in sorted(self.cost_models)) or "none"
        return (
            f"**Simulated, not measured**: {self.engines} under a virtual clock, cost model {costs}. "
            f"`{command}`, {seconds:.0f} s, {when}, commit {commit()}."
        )


def plain(cell: Cell) -> Any:
    if isinstance(cell, Spread):
        return {"mean": plain(cell.mean), "deviation": plain(cell.deviation)}
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def command_line() -> str:
    script, *arguments = sys.argv
    spec = sys.modules["__main__"].__spec__  # none where it was not run with -m
    name = spec.name if spec else f"bench.studies.{Path(script).stem}"
    return shlex.join(["python", "-m", name, *arguments])


def commit() -> str:
    """With `+changes` if the work tree differs; `unknown` outside a repository."""
    try:
        git = ["git", "describe", "--always", "--dirty=+changes"]
        return subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


# ---- drawing ----


def draw(panels: Sequence[Panel], path: Path, title: str) -> None:
    """PNG; the same panels give the same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    from PIL import Image

    num_columns = min(3, len(panels))
    num_rows = -(-len(panels) // num_columns)
    with matplotlib.rc_context({"font.size": 9}):
        size = (4.6 * num_columns, 3.6 * num_rows)
        figure, axes = plt.subplots(num_rows, num_columns, figsize=size, layout="constrained", squeeze=False)
        for ax, panel in zip(axes.flat, panels, strict=False):
            (draw_bars if panel.ticks else draw_lines)(ax, panel)
            ax.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
            ax.set_ylim(0, panel.y_limit)
            ax.grid(alpha=0.3)
        for ax in axes.flat[len(panels) :]:
            ax.axis("off")
        axes.flat[0].legend(fontsize=7)
        figure.suptitle(title, fontsize=8)
        figure.savefig(path, dpi=110)
        plt.close(figure)
    with Image.open(path) as drawn:  # lines need few colours: a third of the bytes
        drawn.convert("RGB").quantize(128).save(path, optimize=True)


def draw_lines(ax: Any, panel: Panel) -> None:
    for series, marker in zip(panel.series, "osv^D<>ph*XP+x" * 3, strict=False):
        ax.plot(series.x, series.y, label=series.name, linewidth=1.2, marker=marker, markersize=3)


def draw_bars(ax: Any, panel: Panel) -> None:
    width = 0.8 / max(len(panel.series), 1)
    for i, series in enumerate(panel.series):
        positions = [x + (i + 0.5) * width - 0.4 for x in range(len(panel.ticks))]
        ax.bar(positions, series.y, width, label=series.name)
    ax.set_xticks(range(len(panel.ticks)), panel.ticks, fontsize=7)

"""Plain text tables for the terminal and for docs."""

from __future__ import annotations

import csv
import textwrap
from collections.abc import Sequence
from pathlib import Path


def render(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with aligned columns: the first to the left, the others, being numbers, to the right."""
    widths = [max(2, *(len(row[column]) for row in (header, *rows))) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "| " + " | ".join((first, *others)) + " |"

    rule = [("-" * widths[0]), *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join((line(header), line(rule), *(line(row) for row in rows)))


def render_part(header: Sequence[str], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> str:
    """The columns of these numbers, for a page that says where all of them are (`write_csv`)."""
    return render([header[i] for i in shown], [[row[i] for i in shown] for row in rows])


def write_csv(target: Path, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    with target.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([header, *rows])


def wrapped(page: str) -> str:
    """A page of Markdown with its prose at 120 columns; tables as they are."""
    return "\n".join(line if line.startswith("|") else _fill(line) for line in page.split("\n"))


def _fill(line: str) -> str:
    indent = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)

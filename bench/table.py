"""Plain text tables for the terminal and for docs."""

from __future__ import annotations

from collections.abc import Sequence


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

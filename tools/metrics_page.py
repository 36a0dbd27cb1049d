"""Writes the catalogue of metrics into docs/metrics.md, between its two marks.

.venv/bin/python tools/metrics_page.py      (make docs)
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gateway.metrics.catalogue import CATALOGUE  # noqa: E402
from gateway.metrics.catalogue.family import Chapter, Family  # noqa: E402

PAGE = ROOT / "docs/metrics.md"
BEGIN = "<!-- begin: written by tools/metrics_page.py from gateway/metrics/catalogue -->"
END = "<!-- end -->"


def main() -> None:
    PAGE.write_text(filled(PAGE.read_text()))


def filled(page: str) -> str:
    """The page with what the catalogue says now between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError("the page has lost its marks")
    return f"{before}{BEGIN}\n\n{''.join(map(chapter, CATALOGUE))}{END}{after}"


def chapter(of: Chapter) -> str:
    text = textwrap.fill(of.text, 120, break_long_words=False, break_on_hyphens=False)
    rows = "\n".join(map(row, of.families))
    return f"### {of.title}\n\n{text}\n\n| metric | kind | meaning |\n|---|---|---|\n{rows}\n\n"


def row(of: Family) -> str:
    labels = f"{{{','.join(of.labels)}}}" if of.labels else ""
    return f"| `{of.shown_name}{labels}` | {of.kind} | {f'{of.help} {of.detail}'.strip()} |"


if __name__ == "__main__":
    main()

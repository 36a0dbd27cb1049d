"""JSONSchemaBench's schemas: a cut of as many per category, drawn once and for all.

The collection (github.com/guidance-ai/jsonschemabench, folder `data`) has no licence file, so no part of it is kept
here: it is cloned, or read from where somebody has put it.
"""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SOURCE = "https://github.com/guidance-ai/jsonschemabench"
SEED = 18


class NoCorpusError(Exception):
    """The message says how to get it."""


@dataclass(frozen=True, slots=True)
class CollectedSchema:
    category: str
    name: str
    schema: Any


def find_corpus(folder: Path | None) -> Path:
    """The folder with a folder per category. folder: a checkout, or its `data`; None: cloned once, into build/."""
    if folder is None:
        folder = Path("build/jsonschemabench")
        if not folder.is_dir():
            _clone(folder)
    data = folder / "data" if (folder / "data").is_dir() else folder
    if not any(data.glob("*/*.json")):
        raise NoCorpusError(
            f"{data} has no CATEGORY/NAME.json: --data takes a checkout of {SOURCE}, or its folder data"
        )
    return data


def cut(data: Path, per_category: int) -> list[CollectedSchema]:
    """per_category of each, fewer where there are fewer; the same ones for the same data. 0: all."""
    return [
        found for category in sorted(data.iterdir()) if category.is_dir() for found in _drawn(category, per_category)
    ]


def _drawn(category: Path, number: int) -> Iterator[CollectedSchema]:
    paths = sorted(category.glob("*.json"))
    if number:
        paths = sorted(random.Random(f"{SEED} {category.name}").sample(paths, min(number, len(paths))))
    for path in paths:
        yield CollectedSchema(category.name, path.stem, json.loads(path.read_text(encoding="utf-8")))


def _clone(folder: Path) -> None:
    command = ["git", "clone", "--quiet", "--depth", "1", SOURCE, str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    except (OSError, subprocess.SubprocessError) as error:
        said = str(getattr(error, "stderr", None) or error).strip()
        raise NoCorpusError(
            f"{SOURCE} cannot be cloned ({said}). Where it can be reached, clone it, bring it here, name the folder: "
            "make test-json-schemas ARGS='--data DIR'"
        ) from None

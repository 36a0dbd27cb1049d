"""Which files a request is first called in, in which order, beside what docs/architecture.md says of it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[2]


def named_in_the_trace(package: str) -> list[str]:
    """The files, and folders with a slash, that lines of the chat request's trace begin with."""
    text = (ROOT / "docs/architecture.md").read_text()
    trace = text.split("\nPOST /v1/chat/completions\n")[1].split("```")[0]
    return [name for name in re.findall(r"(?m)^  (\S+?),? ", trace) if name.startswith(package + "/")]


class FirstCalls:
    """Files of the tree in the order in which a function of theirs was first called, while this is entered."""

    def __init__(self) -> None:
        self._files: dict[str, None] = {}

    def __enter__(self) -> FirstCalls:
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_name != "__init__":  # what is made early may be asked late
            self._files.setdefault(frame.f_code.co_filename)

    def of(self, package: str) -> list[str]:
        inside = [file for file in self._files if file.startswith(f"{ROOT}/{package}/")]
        return [Path(file).relative_to(ROOT).as_posix() for file in inside]


def first_called(names: list[str], files: list[str]) -> list[str]:
    """The names in the order of the files; of a folder the first of its files counts."""
    return sorted(names, key=lambda name: next(i for i, file in enumerate(files) if file.startswith(name)))

"""Answers are read in time that grows with their length, in every family's format, however they come."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from gateway.tools.call_reader import CallReader
from gateway.tools.tool_format import FORMATS, ToolFormat

TEXTS = ("words", "one letter", "spaces", "new lines", "back-ticks", "escapes")
SIZE = 2000
FUNCTIONS = {"f": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "array"}}}}


def begun(tool_format: ToolFormat) -> str:
    """An answer up to the value of a parameter."""
    if (tags := tool_format.tags) is not None:
        return f"{tool_format.opening}{tags.call}f{tags.name_end}{tags.key}b{tags.key_end}{tags.value}["
    if (head := tool_format.head) is not None and head.after_name:
        return f'{tool_format.opening}{tool_format.inner_marks[0]}f{head.after_name}{{"b": ["'
    return f'{tool_format.opening}{{"name": "f", "{tool_format.arguments_key}": {{"b": ["'


def in_a_string(tool_format: ToolFormat) -> str:
    return begun(tool_format)[:-1].replace('"b"', '"a"').replace("b", "a") if tool_format.tags else begun(tool_format)


STARTS: dict[str, Callable[[ToolFormat], str]] = {
    "content": lambda _: "",
    "behind an opening": lambda tool_format: tool_format.opening,
    "a value": begun,
    "a string": in_a_string,
}


def read(tool_format: ToolFormat, start: str, text: str, size: int) -> None:
    reader = CallReader(tool_format, FUNCTIONS)
    reader.feed(start)
    for i in range(0, len(text), size):
        reader.feed(text[i : i + size])
    reader.feed("", is_end=True)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("name", FORMATS)
def test_hostile_texts(name: str, start: str) -> None:
    tool_format = FORMATS[name]
    for make in (HOSTILE_TEXTS[text] for text in TEXTS):
        for size in (2, 10**9):
            work = lambda text, size=size: read(tool_format, STARTS[start](tool_format), text, size)  # noqa: E731
            assert growth(work, make, SIZE) < MAX_RATIO


@pytest.mark.parametrize("name", FORMATS)
def test_marks_over_and_over(name: str) -> None:
    """One of them, almost one, and calls."""
    tool_format = FORMATS[name]
    call = begun(tool_format) + "".join(reversed([mark for mark in tool_format.marks if "/" in mark]))
    for unit in (*tool_format.marks, *(mark[:-1] for mark in tool_format.marks), call, '{"', "}"):
        if not unit:
            continue
        for size in (2, 10**9):
            work = lambda text, size=size: read(tool_format, "", text, size)  # noqa: E731
            assert growth(work, lambda n, unit=unit: unit * (n // len(unit)), SIZE) < MAX_RATIO

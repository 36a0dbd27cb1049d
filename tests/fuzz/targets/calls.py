"""Answers in every family's form of calls: told the same however they are cut, nothing is lost, arguments are JSON."""

from __future__ import annotations

import json
from typing import Any

from fuzz.cursor import Cursor
from gateway.tools.call_reader import CallReader
from gateway.tools.tagged_call import TaggedCall
from gateway.tools.tool_format import FORMATS, PYTHON_TAG, ToolFormat

MAX_BYTES = 2048
_FORMATS = list(FORMATS.values())
FUNCTIONS: dict[str, dict[str, Any] | None] = {
    "add": {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "b": {"type": ["integer", "null"]},
            "c": {"$ref": "#/$defs/c"},
            "d": {"anyOf": [{"enum": ["x", 1.0]}, {"allOf": [{"type": "array"}, {"const": []}]}]},
        },
        "$defs": {"c": {"oneOf": [{"$ref": "#/$defs/c"}, {"type": "object"}]}},
    },
    "now": None,
}
_PIECES = (
    *("add", "now", "none", "a", "b", "c", "d", " ", "\n", '"', "{", "}", "[", "]", ",", ":", "\\", "<", ">", "é"),
    *("1", "-2.5e3", "null", "True", "NaN", '"x"', "[1, 2]", '{"name": "add", "arguments": {"a": 1}}', "```json"),
    *('{"name": "', '", "parameters": ', "[ARGS]", "[CALL_ID]", "function", PYTHON_TAG, '" string="true', "Text. "),
)


def check(data: bytes) -> None:
    cursor = Cursor(data)
    tool_format, max_calls = cursor.choice(_FORMATS), cursor.choice((None, 1))
    size, is_assembled = 1 + cursor.below(12), cursor.below(2)
    text = _assembled(cursor, tool_format) if is_assembled else cursor.rest().decode(errors="replace")
    whole = _read(tool_format, max_calls, [text])
    parts = [text[i : i + size] for i in range(0, len(text), size)]
    assert _read(tool_format, max_calls, [*parts, ""]) == whole
    content, calls = whole
    if not calls:
        assert content.split() == text.split() or "".join(content.split()) == "".join(text.split())
    if tool_format.tags is not None:
        _check_one(tool_format, text)


def _assembled(cursor: Cursor, tool_format: ToolFormat) -> str:
    """Of marks and what stands between them."""
    pieces = (*_PIECES, *tool_format.marks)
    text = ""
    while not cursor.is_empty:
        text += cursor.choice(pieces)
    return text


def _read(tool_format: ToolFormat, max_calls: int | None, parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    reader, content, calls = CallReader(tool_format, FUNCTIONS, max_calls), "", []
    for i, part in enumerate(parts):
        pieces = reader.feed(part, is_end=i == len(parts) - 1)
        content += pieces.content
        for call in pieces.calls:
            if call.name is not None:
                assert call.index == len(calls)
                calls.append((call.name, ""))
            name, arguments = calls[call.index]
            calls[call.index] = (name, arguments + call.arguments)
    return content, calls


def _check_one(tool_format: ToolFormat, text: str) -> None:
    """A call that has an end is an object, whatever stands in it."""
    call = TaggedCall(tool_format, {name: schema or {} for name, schema in FUNCTIONS.items()})
    num_read = call.feed(text)
    assert call.text == text[:num_read]
    if call.is_complete and call.name is not None:
        assert isinstance(json.loads(call.finish_arguments()), dict)

"""Texts of models -> content and calls, whole and cut anywhere."""

from __future__ import annotations

import json
import random

import pytest

from gateway.tools.call_reader import CallReader
from gateway.tools.tool_format import FORMATS, HERMES, MISTRAL

NAMES = {"get_weather", "add"}
PARIS = ("get_weather", {"city": 'Par"is } ]', "tags": [{"a": [1]}]})
SUM = ("add", {"a": 1, "b": -2.5})
Call = tuple[str, dict[str, object]]


def as_json(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


# format, text, content, calls
CASES: list[tuple[str, str, str, list[Call]]] = [
    ("hermes", "Just text. <tool", "Just text. <tool", []),
    ("hermes", f"<tool_call>\n{as_json(PARIS)}\n</tool_call>", "", [PARIS]),
    ("hermes", f"Let me see.\n<tool_call>\n{as_json(PARIS)}\n</tool_call>\n", "Let me see.", [PARIS]),
    (
        "hermes",
        f"<tool_call>{as_json(PARIS)}</tool_call>\n<tool_call>\n{as_json(SUM)}\n</tool_call>",
        "",
        [PARIS, SUM],
    ),
    ("hermes", '<tool_call>\n{"arguments": {"a": 1, "b": -2.5}, "name": "add"}\n</tool_call>', "", [SUM]),
    ("hermes", '<tool_call>\n{"name": "now"}\n</tool_call>', "", [("now", {})]),
    ("hermes", '<tool_call>\n{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": -2.5}"}\n</tool_call>', "", [SUM]),
    ("hermes", "<tool_call>\nnothing of the kind", "<tool_call>\nnothing of the kind", []),
    ("hermes", '<tool_call>{"a": 1}</tool_call>', '<tool_call>{"a": 1}</tool_call>', []),
    ("hermes", "a  \n b ", "a  \n b ", []),
    ("llama3_json", as_json(SUM, "parameters"), "", [SUM]),
    ("llama3_json", f"<|python_tag|>{as_json(SUM, 'parameters')}; {as_json(PARIS, 'parameters')}", "", [SUM, PARIS]),
    ("llama3_json", 'The answer: {"name": "add"}', 'The answer: {"name": "add"}', []),
    ("llama3_json", '{"name": "Ann", "age": 3}', '{"name": "Ann", "age": 3}', []),
    ("mistral", f"[TOOL_CALLS] [{as_json(PARIS)}, {as_json(SUM)}]", "", [PARIS, SUM]),
    ("mistral", f"[TOOL_CALLS]add[ARGS]{json.dumps(SUM[1])}", "", [SUM]),
    (
        "mistral",
        f"I add.[TOOL_CALLS]add{json.dumps(SUM[1])}[TOOL_CALLS]get_weather{json.dumps(PARIS[1])}",
        "I add.",
        [SUM, PARIS],
    ),
    ("mistral", f"[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{json.dumps(SUM[1])}", "", [SUM]),
    ("mistral", "Text [with] brackets [TOOL", "Text [with] brackets [TOOL", []),
    ("json", f"[{as_json(PARIS)}, {as_json(SUM)}]", "", [PARIS, SUM]),
    ("json", as_json(SUM), "", [SUM]),
    ("json", '[{"name": "Ann"}, 2]', '[{"name": "Ann"}, 2]', []),
    ("json", "[1, 2]", "[1, 2]", []),
    ("json", "Plain.", "Plain.", []),
    ("json", "", "", []),
]


def read(reader: CallReader, parts: list[str]) -> tuple[str, list[Call], list[str]]:
    content, names, arguments, ids = "", [], [], []
    for i, part in enumerate(parts):
        pieces = reader.feed(part, is_end=i == len(parts) - 1)
        content += pieces.content
        for call in pieces.calls:
            if call.name is not None:
                assert call.index == len(names)
                names.append(call.name)
                arguments.append("")
                ids.append(call.id or "")
            arguments[call.index] += call.arguments
    return content, [(name, json.loads(text)) for name, text in zip(names, arguments, strict=True)], ids


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_whole_texts(name: str, text: str, content: str, calls: list[Call]) -> None:
    assert read(CallReader(FORMATS[name], NAMES), [text])[:2] == (content, calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_however_a_text_is_cut(name: str, text: str, content: str, calls: list[Call]) -> None:
    draw = random.Random(text)
    assert read(CallReader(FORMATS[name], NAMES), [*text, ""])[:2] == (content, calls)
    for _ in range(10):
        places = sorted(draw.choices(range(len(text) + 1), k=4))
        parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(CallReader(FORMATS[name], NAMES), parts)[:2] == (content, calls), parts


def test_arguments_come_as_they_are_written() -> None:
    reader = CallReader(HERMES, NAMES)
    pieces = reader.feed('<tool_call>\n{"name": "add", "arguments": {"a"')
    assert [(call.name, call.arguments) for call in pieces.calls] == [("add", '{"a"')]
    assert [call.arguments for call in reader.feed(": 12").calls] == [": 12"]


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came() -> None:
    reader = CallReader(HERMES, NAMES)
    pieces = reader.feed('<tool_call>\n{"name": "add", "arguments": {"a": 1', is_end=True)
    assert pieces.content == ""
    assert [(call.name, call.arguments) for call in pieces.calls] == [("add", '{"a": 1')]


def test_calls_beyond_the_limit_are_dropped() -> None:
    text = f"<tool_call>{as_json(PARIS)}</tool_call>\n<tool_call>{as_json(SUM)}</tool_call>"
    assert read(CallReader(HERMES, NAMES, max_calls=1), [text])[:2] == ("", [PARIS])
    assert read(CallReader(HERMES, NAMES, max_calls=1), [*text, ""])[:2] == ("", [PARIS])


def test_ids_differ_and_have_the_familys_form() -> None:
    text = f"[TOOL_CALLS] [{as_json(PARIS)}, {as_json(SUM)}]"
    first, second = read(CallReader(MISTRAL, NAMES), [text])[2]
    assert first != second
    assert len(first) == len(second) == 9

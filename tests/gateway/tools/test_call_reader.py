"""Texts of models -> content and calls, whole and cut anywhere."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.tools.call_reader import CallReader
from gateway.tools.tool_format import FORMATS, HERMES, MISTRAL, QWEN3_CODER

FUNCTIONS: dict[str, dict[str, Any] | None] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "tags": {"type": "array"}},
    },
    "add": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/$defs/number"}}}
    | {"$defs": {"number": {"type": ["number", "null"]}}},
    "now": None,
}
PARIS = ("get_weather", {"city": 'Par"is } ]', "tags": [{"a": [1]}]})
SUM = ("add", {"a": 1, "b": -2.5})
Call = tuple[str, dict[str, object]]


def as_json(call: Call, key: str = "arguments") -> str:
    return json.dumps({"name": call[0], key: call[1]})


CODER_SUM = "<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n-2.5\n</parameter>\n</function>"
CODER_PARIS = (
    '<function=get_weather>\n<parameter=city>\nPar"is } ]\n</parameter>\n'
    '<parameter=tags>\n[{"a": [1]}]\n</parameter>\n</function>'
)
GLM_SUM = "add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n<arg_key>b</arg_key>\n<arg_value>-2.5</arg_value>\n"
GLM_PARIS = (
    'get_weather<arg_key>city</arg_key><arg_value>Par"is } ]</arg_value>'
    '<arg_key>tags</arg_key><arg_value>[{"a": [1]}]</arg_value>'
)
MINIMAX_SUM = '<invoke name="add">\n<parameter name="a">1</parameter>\n<parameter name="b">-2.5</parameter>\n</invoke>'
MINIMAX_PARIS = (
    '<invoke name="get_weather">\n<parameter name="city">Par"is } ]</parameter>\n'
    '<parameter name="tags">[{"a": [1]}]</parameter>\n</invoke>'
)
DSML_PARIS = (
    '<｜DSML｜invoke name="get_weather">\n'
    '<｜DSML｜parameter name="city" string="true">Par"is } ]</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="tags" string="false">[{"a": [1]}]</｜DSML｜parameter>\n</｜DSML｜invoke>'
)
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"


def v3(call: Call) -> str:
    return f"{CALL_BEGIN}function{SEPARATOR}{call[0]}\n```json\n{json.dumps(call[1])}\n```{CALL_END}"


def v31(call: Call) -> str:
    return f"{CALL_BEGIN}{call[0]}{SEPARATOR}{json.dumps(call[1])}{CALL_END}"


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
    ("hermes", "<tool_call>\n</tool", "<tool_call>\n</tool", []),
    ("qwen3_coder", f"<tool_call>\n{CODER_SUM}\n</tool_call>", "", [SUM]),
    (
        "qwen3_coder",
        f"I look.\n\n<tool_call>\n{CODER_PARIS}\n</tool_call>\n<tool_call>\n{CODER_SUM}\n</tool_call>\nDone.",
        "I look.\nDone.",
        [PARIS, SUM],
    ),
    ("qwen3_coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>", "", [("now", {})]),
    ("qwen3_coder", "<tool_call><function=now></tool_call> Bye.", " Bye.", [("now", {})]),  # an end was forgotten
    (
        "qwen3_coder",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\n\n a\n<b> \\ \n\n</parameter></function></tool_call>",
        "",
        [("get_weather", {"city": "\n a\n<b> \\ \n"})],
    ),
    (
        "qwen3_coder",  # a value that is none of its kind is a string; None, as Python writes it; a parameter twice
        "<tool_call><function=add><parameter=a>one</parameter>and<parameter=b>None</parameter><parameter=a>2</parameter>"
        "</function></tool_call>",
        "",
        [("add", {"a": "one", "b": None})],
    ),
    (
        "qwen3_coder",  # nobody said of what kind
        "<tool_call><function=now><parameter=zone>UTC</parameter><parameter=n>[1, 2]</parameter></function>",
        "",
        [("now", {"zone": "UTC", "n": [1, 2]})],
    ),
    ("qwen3_coder", "<tool_call>\nnothing <of> the kind", "<tool_call>\nnothing <of> the kind", []),
    ("qwen3_coder", "<tool_call><function=a b></function>", "<tool_call><function=a b></function>", []),
    ("qwen3_coder", "<tool_call><function=add", "<tool_call><function=add", []),
    ("seed_oss", f"<seed:tool_call>\n{CODER_SUM}\n</seed:tool_call>", "", [SUM]),
    ("glm45", f"<tool_call>{GLM_SUM}</tool_call>", "", [SUM]),
    (
        "glm47",
        f"Well.<tool_call>{GLM_PARIS}</tool_call><tool_call>{GLM_SUM}</tool_call><tool_call>now</tool_call>",
        "Well.",
        [PARIS, SUM, ("now", {})],
    ),
    ("glm45", "<tool_call>is a tag (in XML)", "<tool_call>is a tag (in XML)", []),
    ("glm45", "<tool_call>(<tool_call>now\n</tool_call>", "<tool_call>(", [("now", {})]),
    ("glm45", "<tool_call></tool_call>", "<tool_call></tool_call>", []),
    ("minimax_m2", f"<minimax:tool_call>\n{MINIMAX_PARIS}\n{MINIMAX_SUM}\n</minimax:tool_call>", "", [PARIS, SUM]),
    ("minimax_m2", f"So: <minimax:tool_call>{MINIMAX_SUM}</minimax:tool_call> Good.", "So: Good.", [SUM]),
    (
        "deepseek_v32",
        f"Yes.\n\n<｜DSML｜function_calls>\n{DSML_PARIS}\n</｜DSML｜function_calls>",
        "Yes.",
        [PARIS],
    ),
    ("deepseek_v3", f"{CALLS_BEGIN}{v3(PARIS)}\n{v3(SUM)}{CALLS_END}", "", [PARIS, SUM]),
    ("deepseek_v3", f"One moment. {CALLS_BEGIN}{v3(SUM)}{CALLS_END}", "One moment.", [SUM]),
    ("deepseek_v31", f"One moment.{CALLS_BEGIN}{v31(SUM)}{v31(PARIS)}{CALLS_END}", "One moment.", [SUM, PARIS]),
    ("deepseek_v31", f"{CALLS_BEGIN}? {{}}", f"{CALLS_BEGIN}? {{}}", []),
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
    assert read(CallReader(FORMATS[name], FUNCTIONS), [text])[:2] == (content, calls)


@pytest.mark.parametrize(("name", "text", "content", "calls"), CASES)
def test_however_a_text_is_cut(name: str, text: str, content: str, calls: list[Call]) -> None:
    draw = random.Random(text)
    assert read(CallReader(FORMATS[name], FUNCTIONS), [*text, ""])[:2] == (content, calls)
    for _ in range(10):
        places = sorted(draw.choices(range(len(text) + 1), k=4))
        parts = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
        assert read(CallReader(FORMATS[name], FUNCTIONS), parts)[:2] == (content, calls), parts


def test_arguments_come_as_they_are_written() -> None:
    reader = CallReader(HERMES, FUNCTIONS)
    pieces = reader.feed('<tool_call>\n{"name": "add", "arguments": {"a"')
    assert [(call.name, call.arguments) for call in pieces.calls] == [("add", '{"a"')]
    assert [call.arguments for call in reader.feed(": 12").calls] == [": 12"]


def test_strings_between_tags_come_as_they_are_written() -> None:
    reader = CallReader(QWEN3_CODER, FUNCTIONS)
    pieces = reader.feed('<tool_call>\n<function=get_weather>\n<parameter=city>\nNew "')
    assert [(call.name, call.arguments) for call in pieces.calls] == [("get_weather", '{"city": "New \\"')]
    assert [call.arguments for call in reader.feed("York\n").calls] == ["York"]
    assert [call.arguments for call in reader.feed("</para").calls] == []
    assert [call.arguments for call in reader.feed("meter>\n<parameter=tags>[").calls] == ['", "tags": ']
    assert [call.arguments for call in reader.feed("1]</parameter></function>").calls] == ["[1]}"]


def test_a_call_that_is_cut_off_is_told_as_far_as_it_came() -> None:
    reader = CallReader(HERMES, FUNCTIONS)
    pieces = reader.feed('<tool_call>\n{"name": "add", "arguments": {"a": 1', is_end=True)
    assert pieces.content == ""
    assert [(call.name, call.arguments) for call in pieces.calls] == [("add", '{"a": 1')]


def test_calls_beyond_the_limit_are_dropped() -> None:
    text = f"<tool_call>{as_json(PARIS)}</tool_call>\n<tool_call>{as_json(SUM)}</tool_call>"
    assert read(CallReader(HERMES, FUNCTIONS, max_calls=1), [text])[:2] == ("", [PARIS])
    assert read(CallReader(HERMES, FUNCTIONS, max_calls=1), [*text, ""])[:2] == ("", [PARIS])


def test_ids_differ_and_have_the_familys_form() -> None:
    text = f"[TOOL_CALLS] [{as_json(PARIS)}, {as_json(SUM)}]"
    first, second = read(CallReader(MISTRAL, FUNCTIONS), [text])[2]
    assert first != second
    assert len(first) == len(second) == 9

"""What an answer may be where calls are asked for, or have to follow their schemas: a grammar in llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.tools import Function
from gateway.tools.lark import MarkerIds, json_of, literal, spelled
from gateway.tools.tagged_grammar import tagged_call
from gateway.tools.tool_format import ToolFormat
from schedcore.api.types import Grammar, GrammarKind

MAX_CALLS = 32  # of one answer
_ANY_ARGUMENTS = {"type": "object"}


def calls_grammar(
    tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> Grammar:
    """Calls, and nothing else."""
    return _grammar(["start: calls", *_calls(tool_format, functions, is_parallel, marker_ids)])


def answer_or_calls(
    schema: Grammar, tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> Grammar:
    """JSON of the schema, or calls. Raises InvalidRequestError."""
    answer = f"answer: {json_of(_read(schema.text), has_space=schema.has_space)}"
    calls = _calls(tool_format, _loosened(functions), is_parallel, marker_ids)
    return _grammar(["start: answer | calls", answer, *calls])


def strict_grammar(
    tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> Grammar:
    """Text, or calls that follow the schemas of the functions that are strict."""
    calls = _calls(tool_format, _loosened(functions), is_parallel, marker_ids)
    if tool_format.begins_text:
        return _grammar(["start: TEXT | calls", r"TEXT: /[^{\[\s](.|\n)*/", *calls])
    if tool_format.opening in marker_ids:
        return _grammar(["start: TEXT calls?", r"TEXT: /(.|\n)*/", *calls])
    first, *rules = calls
    opening = literal(tool_format.opening)
    begun = first.removeprefix(f"calls: {opening} ")
    text = [r"TEXT: /(.|\n)*/", f"before[lazy]: /(.|\\n)*/ {opening}"]
    return _grammar(["start: before begun | TEXT", f"begun: {begun}", *text, *rules])


def _loosened(functions: Sequence[Function]) -> list[Function]:
    """Those that are not strict take any object."""
    return [f if f.strict else Function(f.name, parameters=_ANY_ARGUMENTS) for f in functions]


def _read(schema: str) -> dict[str, Any] | bool:
    try:
        read: dict[str, Any] | bool = json.loads(schema)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"The JSON schema cannot be read: {error}.", code="invalid_grammar") from None
    return read


def _calls(
    tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> list[str]:
    """Rules; the first is `calls`."""
    bodies = [
        rule for i, function in enumerate(functions) for rule in _call(tool_format, function, f"call_{i}", marker_ids)
    ]
    one = "call: " + " | ".join(f"call_{i}" for i in range(len(functions)))
    opening, closing, separator, gap = (
        spelled(text, marker_ids)
        for text in (tool_format.opening, tool_format.closing, tool_format.separator, tool_format.gap)
    )
    first, following, end = f"{opening} call".lstrip(), f"{separator} call", ""
    if tool_format.is_section:
        first, end = f"{opening} {gap} call", f" {gap} {closing}"
    elif tool_format.closing:
        first = f"{opening} {gap} call {gap} {closing}"
        following = f"{separator} {first}"
    elif tool_format.is_list:
        first, end = f'{opening} "[" call'.lstrip(), ' "]"'
    more = f" ({following}){{0,{MAX_CALLS - 1}}}" if is_parallel else ""
    return [f"calls: {first}{more}{end}", one, *bodies]


def _call(tool_format: ToolFormat, function: Function, rule: str, marker_ids: MarkerIds) -> list[str]:
    """Rules; the first is named so."""
    head, name = tool_format.head, function.name
    if tool_format.tags is not None:
        return tagged_call(tool_format.tags, function, rule, marker_ids)
    if head is not None and head.after_name:
        begin, end = f"{head.before_name}{name}{head.after_name}", head.after_arguments
        if tool_format.inner_marks:
            begin, end = tool_format.inner_marks[0] + begin, end + tool_format.inner_marks[1]
    else:
        begin, end = f'{{"name": {json.dumps(name)}, "{tool_format.arguments_key}": ', "}"
    return [f"{rule}: {spelled(begin, marker_ids)} {json_of(_parameters(function))} {spelled(end, marker_ids)}"]


def _parameters(function: Function) -> dict[str, Any] | bool:
    """Arguments are an object, whatever the schema leaves open."""
    schema = function.parameters or {"properties": {}, "additionalProperties": False}
    return {"type": "object", **schema}


def _grammar(rules: list[str]) -> Grammar:
    return Grammar(GrammarKind.LARK, "\n".join(["%llguidance {}", *rules]))

"""What an answer may be where calls are asked for, or have to follow their schemas: a grammar in llguidance's Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.tools import Function
from gateway.tools.tool_format import ToolFormat
from schedcore.api.types import Grammar, GrammarKind
from schedcore.grammar.json_schema import followable_tree
from schedcore.grammar.source import WHITESPACE

MarkerIds = Mapping[str, int]  # openings and closings that are single tokens, which stand outside of text
MAX_CALLS = 32  # of one answer
_ANY_ARGUMENTS = {"type": "object"}


def calls_grammar(
    tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> Grammar:
    """Calls, and nothing else."""
    return _grammar(["start: calls", *_calls(tool_format, functions, is_parallel, marker_ids)])


def answer_or_calls(
    schema: str, tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> Grammar:
    """JSON of the schema, or calls. Raises InvalidRequestError."""
    answer = f"answer: %json {json.dumps(_with_options(_read(schema)))}"
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
    opening = _literal(tool_format.opening)
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


def _with_options(schema: dict[str, Any] | bool) -> dict[str, Any] | bool:
    options = {"whitespace_pattern": WHITESPACE, "lenient": False}
    return schema if isinstance(schema, bool) else {**followable_tree(schema), "x-guidance": options}


def _calls(
    tool_format: ToolFormat, functions: Sequence[Function], is_parallel: bool, marker_ids: MarkerIds
) -> list[str]:
    """Rules; the first is `calls`."""
    bodies = [f"call_{i}: {_body(tool_format, function)}" for i, function in enumerate(functions)]
    one = "call: " + " | ".join(f"call_{i}" for i in range(len(functions)))
    opening, separator = _marker(tool_format.opening, marker_ids), _literal(tool_format.separator)
    if tool_format.closing:
        first = f'{opening} "\\n" call "\\n" {_marker(tool_format.closing, marker_ids)}'
        following = f"{separator} {first}"
    else:
        first, following = f"{opening} call".lstrip(), f"{separator} call"
        if tool_format.is_list:
            first = f'{opening} "[" call'.lstrip()
    more = f" ({following}){{0,{MAX_CALLS - 1}}}" if is_parallel else ""
    end = ' "]"' if tool_format.is_list else ""
    return [f"calls: {first}{more}{end}", one, *bodies]


def _marker(text: str, marker_ids: MarkerIds) -> str:
    """Empty for none."""
    return f"<[{marker_ids[text]}]>" if text in marker_ids else _literal(text) if text else ""


def _body(tool_format: ToolFormat, function: Function) -> str:
    head = f'{{"name": {json.dumps(function.name)}, "{tool_format.arguments_key}": '
    return f'{_literal(head)} %json {json.dumps(_parameters(function))} "}}"'


def _parameters(function: Function) -> dict[str, Any] | bool:
    """Arguments are an object, whatever the schema leaves open."""
    schema = function.parameters or {"properties": {}, "additionalProperties": False}
    return _with_options({"type": "object", **schema})


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _grammar(rules: list[str]) -> Grammar:
    return Grammar(GrammarKind.LARK, "\n".join(["%llguidance {}", *rules]))

"""Whatever is said under a grammar of calls is read as calls, and they validate; in every family's format."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from tokenizers import AddedToken

from fakes.byte_tokenizer import END, VOCAB_SIZE, byte_tokenizer, write_byte_checkpoint
from fakes.json_schemas import SCHEMAS
from gateway.model.checkpoint import Checkpoint
from gateway.model.tokenize import Tokenizer
from gateway.protocol.output.tools import Function
from gateway.tools.call_reader import CallReader, Pieces
from gateway.tools.calls_grammar import answer_or_calls, calls_grammar, strict_grammar
from gateway.tools.tool_format import DEEPSEEK_V31, FORMATS, HERMES, JSON, MISTRAL, QWEN3_CODER, ToolFormat
from schedcore.api.types import EngineRequest, Grammar, GrammarKind
from schedcore.grammar.source import find_problem
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher

FUNCTIONS = [
    Function("weather", parameters=SCHEMAS["application: weather call"], strict=True),
    Function("tree", parameters=SCHEMAS["reference: list"] | {"type": "object"}, strict=True),
    Function("now", strict=True),
]
_LIST = SCHEMAS["reference: list"]
TEXTS = {
    "free": {"type": "string"},
    "unit": {"enum": ["°C", "°F", 3, None]},
    "short": {"type": "string", "minLength": 2, "maxLength": 5},
    "code": {"type": "string", "pattern": "^[a-z/]{2}-[0-9]+$"},
    "part": {"type": "string", "pattern": "[xyz]", "maxLength": 20},
    "perhaps": {"anyOf": [{"type": "string", "minLength": 1}, {"type": "null"}], "default": None},
    "either": {"type": ["boolean", "string"]},
    "any": {"description": "whatever"},
    "named": {"$ref": "#/$defs/name"},
}
TAGGED_FUNCTIONS = [  # a call's own schema is an object with parameters
    FUNCTIONS[0],
    Function(
        "tree",
        parameters={"type": "object", "properties": {"tree": {"$ref": "#/$defs/l"}}, "required": ["tree"]}
        | {"$defs": _LIST["$defs"]},
        strict=True,
    ),
    Function("now", strict=True),
    Function(
        "texts",
        parameters={"type": "object", "properties": TEXTS, "required": ["free", "unit", "short", "perhaps"]}
        | {"$defs": {"name": {"type": "string", "maxLength": 9}}, "additionalProperties": False},
        strict=True,
    ),
    Function("anything", parameters={"type": "object"}, strict=True),
]
BY_NAME = {
    name: {f.name: f.parameters or {"type": "object", "maxProperties": 0} for f in functions}
    for name, functions in ((False, FUNCTIONS), (True, TAGGED_FUNCTIONS))
}
_TAG = re.compile(r"</?[^\s=\"]+>|\[[A-Z_]+\]")  # what families have tokens for


def functions_of(tool_format: ToolFormat) -> list[Function]:
    return FUNCTIONS if tool_format.tags is None else TAGGED_FUNCTIONS


def read(tool_format: ToolFormat, text: str) -> Pieces:
    """Its calls validate."""
    schemas = BY_NAME[tool_format.tags is not None]
    pieces = CallReader(tool_format, schemas).feed(text, is_end=True)
    for call in pieces.calls:
        assert call.name is not None
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    return pieces


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def is_special(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def grammars_of(folder: Path, tool_format: ToolFormat, is_special: bool) -> Grammars:
    """The bytes, and the format's marks as one token each."""
    write_byte_checkpoint(folder)
    tokenizer = byte_tokenizer()
    marks = own_tokens(tool_format)
    tokenizer.add_tokens([AddedToken(mark, special=is_special, normalized=False) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Grammars(folder, VOCAB_SIZE + len(marks))


def own_tokens(tool_format: ToolFormat) -> list[str]:
    """They follow the vocabulary."""
    return [mark for mark in dict.fromkeys(tool_format.marks) if _TAG.fullmatch(mark)]


def marker_ids(folder: Path) -> dict[str, int]:
    """As the gateway sees them."""
    tokenizer = Tokenizer.load(Checkpoint.read(folder))
    found = {mark: tokenizer.marker_id(mark) for f in FORMATS.values() for mark in f.marks}
    return {mark: token_id for mark, token_id in found.items() if token_id is not None}


def follow(grammars: Grammars, grammar: Grammar) -> Matcher:
    grammars.begin(EngineRequest(1, [1], 1, stop_token_ids=[END], grammar=grammar))
    while not (compiled := grammars.take_compiled()):
        grammars.wait()
    assert compiled == [(1, None)]
    return grammars.matcher(1)


def advance(matcher: Matcher, token: int) -> None:
    matcher.advance(token)
    matcher.find_mask()
    assert matcher.problem is None


def allowed(matcher: Matcher) -> list[int]:
    return np.flatnonzero(np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")).tolist()


def said(matcher: Matcher, tool_format: ToolFormat, draw: random.Random) -> str:
    text, marks = b"", own_tokens(tool_format)
    value_end = b"" if tool_format.tags is None else tool_format.tags.value_end.encode()
    for _ in range(6000):
        tokens = allowed(matcher)
        closing = [token for token in tokens if token in (*b'"]}', END) or token >= VOCAB_SIZE] if text else []
        token = draw.choice(closing if closing and draw.random() < 0.5 else tokens)
        begun = text[text.rfind(b"<") :]
        if begun[:1] == b"<" and value_end[: len(begun)] == begun and {*value_end[len(begun) :][:1]} & {*tokens}:
            token = value_end[len(begun)]  # else, nothing that is random would end a text
        elif ord("<") in tokens and draw.random() < 0.1:
            token = ord("<")
        if token == END:
            return text.decode()
        text += marks[token - VOCAB_SIZE].encode() if token >= VOCAB_SIZE else bytes([token])
        advance(matcher, token)
    pytest.fail(f"the answer has no end: {text[:400]!r} ... {text[-200:]!r}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_calls_validate(tmp_path: Path, is_special: bool, name: str, is_parallel: bool) -> None:
    tool_format = FORMATS[name]
    grammars, draw = grammars_of(tmp_path, tool_format, is_special), random.Random(name)
    grammar = calls_grammar(tool_format, functions_of(tool_format), is_parallel, marker_ids(tmp_path))
    assert find_problem(grammar) is None
    for _ in range(6):
        text = said(follow(grammars, grammar), tool_format, draw)
        pieces = read(tool_format, text)
        assert pieces.content == ""
        assert len(pieces.calls) == 1 or (is_parallel and pieces.calls)


@pytest.mark.parametrize("name", FORMATS)
def test_strict_calls_follow_their_schemas_and_text_is_free(tmp_path: Path, is_special: bool, name: str) -> None:
    tool_format = FORMATS[name]
    grammars = grammars_of(tmp_path, tool_format, is_special)
    grammar = strict_grammar(tool_format, functions_of(tool_format), True, marker_ids(tmp_path))
    matcher = follow(grammars, grammar)
    for byte in b"Plain text, with ' {\"a\": 1} ' in it. ":
        assert byte in allowed(matcher)
        advance(matcher, byte)
    assert END in allowed(matcher)
    if tool_format.opening:
        is_one = is_special or tool_format.opening.startswith("<")
        opening = own_tokens(tool_format).index(tool_format.opening) + VOCAB_SIZE
        for token in [opening] if is_one else list(tool_format.opening.encode()):
            assert token in allowed(matcher)
            advance(matcher, token)
        assert END not in allowed(matcher)
        assert len(allowed(matcher)) <= len(TAGGED_FUNCTIONS)


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL, JSON, QWEN3_CODER, DEEPSEEK_V31])
def test_an_answer_of_a_form_or_calls(tmp_path: Path, tool_format: ToolFormat) -> None:
    grammars, draw = grammars_of(tmp_path, tool_format, False), random.Random(1)
    person = SCHEMAS["object: person"]
    answer = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(person))
    grammar = answer_or_calls(answer, tool_format, functions_of(tool_format), True, marker_ids(tmp_path))
    kinds = set()
    for _ in range(12):
        text = said(follow(grammars, grammar), tool_format, draw)
        pieces = read(tool_format, text)
        kinds.add(bool(pieces.calls))
        if pieces.calls:
            assert pieces.content == ""
        else:
            jsonschema.validate(json.loads(pieces.content), person)
    assert kinds == {True, False}


def test_an_unsupported_schema_is_named() -> None:
    functions = [Function("f", parameters={"type": "object", "properties": {"a": {"not": {}}}})]
    problem = find_problem(calls_grammar(HERMES, functions, True, {}))
    assert problem is not None
    assert '"not"' in problem

"""Whatever is said under a grammar of calls is read as calls, and they validate; in every family's format."""

from __future__ import annotations

import json
import random
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
from gateway.tools.call_reader import CallReader
from gateway.tools.calls_grammar import answer_or_calls, calls_grammar, strict_grammar
from gateway.tools.tool_format import FORMATS, HERMES, JSON, MISTRAL, ToolFormat
from schedcore.api.types import EngineRequest, Grammar
from schedcore.grammar.source import find_problem
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher

FUNCTIONS = [
    Function("weather", parameters=SCHEMAS["application: weather call"], strict=True),
    Function("tree", parameters=SCHEMAS["reference: list"] | {"type": "object"}, strict=True),
    Function("now", strict=True),
]
BY_NAME = {f.name: f.parameters or {"type": "object", "maxProperties": 0} for f in FUNCTIONS}
OPENING, CLOSING = VOCAB_SIZE, VOCAB_SIZE + 1  # added tokens


@pytest.fixture(scope="module", params=[True, False], ids=["special", "plain"])
def is_special(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def grammars_of(folder: Path, tool_format: ToolFormat, is_special: bool) -> Grammars:
    """The bytes, and the format's marks as one token each."""
    write_byte_checkpoint(folder)
    tokenizer = byte_tokenizer()
    marks = [mark for mark in (tool_format.opening, tool_format.closing) if mark]
    tokenizer.add_tokens([AddedToken(mark, special=is_special, normalized=False) for mark in marks])
    tokenizer.save(str(folder / "tokenizer.json"))
    return Grammars(folder, VOCAB_SIZE + 2)


def marker_ids(folder: Path) -> dict[str, int]:
    """As the gateway sees them."""
    tokenizer = Tokenizer.load(Checkpoint.read(folder))
    found = {mark: tokenizer.marker_id(mark) for f in FORMATS.values() for mark in (f.opening, f.closing)}
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
    text = b""
    for _ in range(3000):
        tokens = allowed(matcher)
        closing = [token for token in tokens if token in (*b'"]}', END)]
        token = draw.choice(closing if closing and draw.random() < 0.5 else tokens)
        if token == END:
            return text.decode()
        marks = {OPENING: tool_format.opening, CLOSING: tool_format.closing}
        text += marks[token].encode() if token in marks else bytes([token])
        advance(matcher, token)
    pytest.fail(f"the answer has no end: {text[:400]!r} ... {text[-200:]!r}")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_calls_validate(tmp_path: Path, is_special: bool, name: str, is_parallel: bool) -> None:
    tool_format = FORMATS[name]
    grammars, draw = grammars_of(tmp_path, tool_format, is_special), random.Random(name)
    grammar = calls_grammar(tool_format, FUNCTIONS, is_parallel, marker_ids(tmp_path))
    assert find_problem(grammar) is None
    for _ in range(4):
        text = said(follow(grammars, grammar), tool_format, draw)
        pieces = CallReader(tool_format, BY_NAME.keys()).feed(text, is_end=True)
        assert pieces.content == ""
        assert len(pieces.calls) == 1 or (is_parallel and pieces.calls)
        for call in pieces.calls:
            assert call.name is not None
            jsonschema.validate(json.loads(call.arguments), BY_NAME[call.name])


@pytest.mark.parametrize("name", FORMATS)
def test_strict_calls_follow_their_schemas_and_text_is_free(tmp_path: Path, is_special: bool, name: str) -> None:
    tool_format = FORMATS[name]
    grammars = grammars_of(tmp_path, tool_format, is_special)
    grammar = strict_grammar(tool_format, FUNCTIONS, True, marker_ids(tmp_path))
    matcher = follow(grammars, grammar)
    for byte in b"Plain text, with ' {\"a\": 1} ' in it. ":
        assert byte in allowed(matcher)
        advance(matcher, byte)
    assert END in allowed(matcher)
    if tool_format.opening:
        is_one = is_special or tool_format is HERMES
        for token in [OPENING] if is_one else list(tool_format.opening.encode()):
            assert token in allowed(matcher)
            advance(matcher, token)
        assert allowed(matcher) == [b"\n"[0] if tool_format is HERMES else b"["[0]]


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL, JSON])
def test_an_answer_of_a_form_or_calls(tmp_path: Path, tool_format: ToolFormat) -> None:
    grammars, draw = grammars_of(tmp_path, tool_format, False), random.Random(1)
    person = SCHEMAS["object: person"]
    grammar = answer_or_calls(json.dumps(person), tool_format, FUNCTIONS, True, marker_ids(tmp_path))
    kinds = set()
    for _ in range(12):
        text = said(follow(grammars, grammar), tool_format, draw)
        pieces = CallReader(tool_format, BY_NAME.keys()).feed(text, is_end=True)
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

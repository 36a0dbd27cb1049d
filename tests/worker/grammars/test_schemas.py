"""A hundred schemas: whatever a model that knows nothing says under them validates."""

from __future__ import annotations

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

from fakes.byte_tokenizer import END, VOCAB_SIZE, write_byte_checkpoint
from fakes.json_schemas import SCHEMAS
from schedcore.api.types import EngineRequest, Grammar, GrammarKind
from schedcore.grammar.source import find_problem
from worker.grammars.grammars import Grammars
from worker.grammars.matcher import Matcher

MAX_TOKENS = 2000
CLOSING = tuple(b'"]}')


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    return Grammars(write_byte_checkpoint(tmp_path_factory.mktemp("bytes")), VOCAB_SIZE)


def matcher(grammars: Grammars, schema: Any, request_id: int = 1, *, has_space: bool = True) -> Matcher:
    wanted = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), has_space=has_space)
    grammars.begin(EngineRequest(request_id, [1], 1, stop_token_ids=[END], grammar=wanted))
    while not (compiled := grammars.take_compiled()):
        grammars.wait()
    assert compiled == [(request_id, None)]
    return grammars.matcher(request_id)


def said(matcher: Matcher, draw: random.Random) -> bytes:
    """Any byte that is allowed, with a liking for what closes, so that it comes to an end."""
    text = bytearray()
    while len(text) < MAX_TOKENS:
        bits = np.unpackbits(matcher.mask.view(np.uint8), bitorder="little")
        allowed = np.flatnonzero(bits).tolist()
        closing = [token for token in allowed if token in (*CLOSING, END)]
        token = draw.choice(closing if closing and draw.random() < 0.4 else allowed)
        if token == END:
            return bytes(text)
        text.append(token)
        matcher.advance(token)
        matcher.find_mask()
        assert matcher.problem is None
    pytest.fail("the answer has no end")


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_said_validates(grammars: Grammars, name: str) -> None:
    schema = SCHEMAS[name]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert find_problem(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))) is None
    draw = random.Random(name)
    for _ in range(3):
        text = said(matcher(grammars, schema), draw)
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


@pytest.mark.parametrize("name", SCHEMAS)
def test_without_space_only_texts_have_any(grammars: Grammars, name: str) -> None:
    schema, draw = SCHEMAS[name], random.Random(name)
    for _ in range(2):
        text = said(matcher(grammars, schema, has_space=False), draw).decode()
        jsonschema.validate(json.loads(text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        assert not set(re.sub(r'"([^"\\]|\\.)*"', "", text)) & set(" \n\r\t")


def test_there_are_a_hundred() -> None:
    assert len(SCHEMAS) >= 95


def test_requests_of_one_grammar_do_not_touch_each_other(grammars: Grammars) -> None:
    first, second = (matcher(grammars, SCHEMAS["object: person"], i) for i in (1, 2))
    before = second.mask.copy()
    first.advance(ord("{"))
    first.find_mask()
    assert (second.mask == before).all()
    assert not (first.mask == before).all()


def test_tokens_of_the_vocabulary_only(tmp_path: Path) -> None:
    """Logits may be wider than the tokenizer: the rest is never allowed."""
    wide = Grammars(write_byte_checkpoint(tmp_path / "bytes"), 512)
    mask = matcher(wide, {"type": "string"}).mask
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    assert bits[:VOCAB_SIZE].any()
    assert not bits[VOCAB_SIZE:].any()


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


HOSTILE: dict[str, Any] = {
    "deep": deep(200),
    "long": {"enum": [f"e{i}" for i in range(30_000)]},
    "wide": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(10_000)}},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_schemas_are_refused_with_a_reason(name: str) -> None:
    assert find_problem(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(HOSTILE[name])))


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"not": {"type": "string"}}, '"not"'),
        ({"type": "array", "uniqueItems": True}, '"uniqueItems"'),
        ({"if": {}, "then": {}}, '"if", "then"'),
        ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, '"oneOf"'),
        ({"propertyNames": {"pattern": "a"}}, '"propertyNames"'),
        ({"type": "object", "properties": {"a": {}}, "minProperties": 2}, '"minProperties"'),
        ({"type": "frob"}, "frob"),
        ({"$ref": "#/nowhere"}, "/nowhere"),
        ({"$ref": "http://example.org/schema"}, "example.org"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "string", "pattern": "a\\b"}, '"pattern"'),
        ({"x-guidance": {"lenient": True}, "not": {}}, '"not"'),
    ],
)
def test_what_is_not_supported_is_named(schema: Any, word: str) -> None:
    problem = find_problem(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema)))
    assert problem is not None
    assert word in problem
    assert "\n" not in problem


def test_others_run_while_a_schema_is_read() -> None:
    """The interpreter's lock is let go: another thread gets on meanwhile."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}
    slow = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema))
    with ThreadPoolExecutor(1) as threads:
        checked = threads.submit(find_problem, slow)
        turns = 0
        while not checked.done():
            turns += 1
    assert checked.result() is None
    assert turns > 1000

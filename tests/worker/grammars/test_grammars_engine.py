"""Requests with grammars through the whole engine, on a random model: what it says is what the grammar allows."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fakes.byte_tokenizer import END, VOCAB_SIZE, write_byte_checkpoint
from fakes.engine_driver import GATEWAY, make_engine, output_tokens, run
from fakes.tiny_checkpoints import make_model
from schedcore.api.types import EngineRequest, ErrorCode, FinishReason, Grammar, GrammarKind, SamplingParams, TokenDelta
from worker.process.engine import Engine

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
RANDOM = SamplingParams(temperature=1.0, seed=7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_byte_checkpoint(tmp_path_factory.mktemp("bytes"))
    make_model("llama", vocab_size=VOCAB_SIZE).save_pretrained(folder)
    return folder


def grammar(kind: GrammarKind, content: Any) -> Grammar:
    return Grammar(kind, content if isinstance(content, str) else json.dumps(content))


def request(request_id: int, wanted: Grammar | None, **fields: Any) -> EngineRequest:
    prompt = random.Random(request_id).choices(range(256), k=20)
    defaults = {"max_tokens": 400, "stop_token_ids": [END], "sampling": RANDOM, "grammar": wanted}
    return EngineRequest(request_id, prompt, **{**defaults, **fields})


def text(deltas: list[TokenDelta]) -> str:
    assert deltas[-1].finish_reason is FinishReason.STOP, deltas[-1]
    return bytes(token for delta in deltas for token in delta.token_ids if token < 256).decode()


def check_invariants(engine: Engine) -> None:
    engine.check_invariants()
    assert not engine.has_work()


PERSONS = grammar(GrammarKind.JSON_SCHEMA, PERSON)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_validates(folder: Path, temperature: float) -> None:
    engine = make_engine(folder)
    sampling = SamplingParams(temperature=temperature, seed=3)
    deltas = run(engine, [request(i, PERSONS, sampling=sampling) for i in range(1, 7)])
    for of_request in deltas.values():
        jsonschema.validate(json.loads(text(of_request)), PERSON)
    check_invariants(engine)


def test_choices_regexes_and_rules(folder: Path) -> None:
    choices = ["yes", 'a "quoted" one', "é"]
    rules = 'start: "SELECT " COLUMN " FROM t"\nCOLUMN: /[a-z]{1,5}/'
    wanted = [
        grammar(GrammarKind.CHOICE, choices),
        grammar(GrammarKind.REGEX, r"\d{3}-[a-f]+"),
        grammar(GrammarKind.LARK, rules),
    ]
    deltas = run(make_engine(folder), [request(i, g) for i, g in enumerate(wanted, 1)])
    assert text(deltas[1]) in choices
    assert re.fullmatch(r"\d{3}-[a-f]+", text(deltas[2]))
    assert re.fullmatch(r"SELECT [a-z]{1,5} FROM t", text(deltas[3]))


def test_neighbours_without_a_grammar_are_not_touched(folder: Path) -> None:
    plain = [request(i, None, max_tokens=30, stop_token_ids=[]) for i in (11, 12)]
    alone = output_tokens(run(make_engine(folder), plain))
    deltas = run(make_engine(folder), [*plain, *(request(i, PERSONS) for i in (1, 2))])
    assert output_tokens({i: deltas[i] for i in (11, 12)}) == alone


def test_preempted_and_chunked_requests_go_on_where_they_were(folder: Path) -> None:
    requests = [request(i, PERSONS) for i in range(1, 9)]
    calm = output_tokens(run(make_engine(folder), requests))
    tight = make_engine(folder, cache_memory_bytes=1 << 17, max_num_batched_tokens=32)
    assert output_tokens(run(tight, requests)) == calm
    assert tight.stats().num_preemptions > 0


def test_penalties_biases_and_logprobs_go_along(folder: Path) -> None:
    sampling = SamplingParams(
        seed=1, repetition_penalty=1.3, presence_penalty=0.5, logit_bias={65: 50.0, END: 50.0}, num_logprobs=2
    )
    deltas = run(make_engine(folder), [request(1, PERSONS, sampling=sampling, min_tokens=3)])[1]
    jsonschema.validate(json.loads(text(deltas)), PERSON)
    assert all(delta.logprobs is not None and len(delta.logprobs[0].top) == 2 for delta in deltas)


def test_a_grammar_at_its_end_goes_before_min_tokens(folder: Path) -> None:
    deltas = run(make_engine(folder), [request(1, grammar(GrammarKind.CHOICE, ["ab"]), min_tokens=50)])[1]
    assert text(deltas) == "ab"
    pairs = grammar(GrammarKind.REGEX, "(ab)*")
    longer = run(make_engine(folder), [request(1, pairs, min_tokens=50)])[1]
    assert len(text(longer)) >= 50


@pytest.mark.parametrize(
    ("wanted", "fields", "word"),
    [
        (grammar(GrammarKind.JSON_SCHEMA, {"type": "array", "uniqueItems": True}), {}, "uniqueItems"),
        (grammar(GrammarKind.REGEX, "(a"), {}, "unclosed group"),
        (grammar(GrammarKind.JSON_SCHEMA, "{"), {}, "malformed"),
        (PERSONS, {"stop_token_ids": []}, "stop token"),
    ],
)
def test_what_cannot_be_followed_is_refused(folder: Path, wanted: Grammar, fields: dict[str, Any], word: str) -> None:
    engine = make_engine(folder)
    deltas = run(engine, [request(1, wanted, **fields), request(2, PERSONS)])
    error = deltas[1][-1].error
    assert error is not None
    assert error.code is ErrorCode.INVALID
    assert word in error.message
    assert text(deltas[2])
    check_invariants(engine)


def test_a_request_may_be_aborted_while_its_grammar_is_compiled(folder: Path) -> None:
    engine = make_engine(folder)
    engine.add(GATEWAY, request(1, PERSONS))
    engine.abort(GATEWAY, 1)
    assert engine.take_deltas()[GATEWAY][-1].finish_reason is FinishReason.ABORT
    while engine.has_work():
        engine.step()
    check_invariants(engine)


def test_without_a_vocabulary_grammars_are_refused(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        if path.name != "tokenizer.json":
            (tmp_path / path.name).write_bytes(path.read_bytes())
    error = run(make_engine(tmp_path), [request(1, PERSONS)])[1][-1].error
    assert error is not None
    assert "no tokenizer.json" in error.message

"""A request that goes on after prior tokens says what the whole one would have said, wherever it was cut."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.byte_tokenizer import END, VOCAB_SIZE, write_byte_checkpoint
from fakes.engine_driver import GATEWAY, make_engine, run
from fakes.tiny_checkpoints import make_model
from schedcore.api.types import (
    EngineRequest,
    ErrorCode,
    FinishReason,
    Grammar,
    GrammarKind,
    Pooling,
    PoolingKind,
    SamplingParams,
    Targets,
    TokenDelta,
    TokenLogprobs,
)
from schedcore.record.replay import replay
from worker.process.engine import Engine

NUM_TOKENS = 24
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 6}}, "required": ["name"]}
CALL = 'start: "<call>" BODY "</call>"\nBODY: /[a-f]{6}/'

FEATURES: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": {"temperature": 0.0}},
    "seeded": {"sampling": {"seed": 11}},
    "filters": {"sampling": {"seed": 3, "temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.01}},
    "repetition": {"sampling": {"temperature": 0.0, "repetition_penalty": 1.7}},
    "presence": {"sampling": {"temperature": 0.0, "presence_penalty": 1.5}},
    "frequency": {"sampling": {"seed": 5, "frequency_penalty": 1.2}},
    "bias": {"sampling": {"seed": 5, "logit_bias": {65: 4.0, 66: -100.0}}},
    "logprobs": {"sampling": {"seed": 8, "num_logprobs": 3}},
    "named logprobs": {"sampling": {"seed": 8, "num_logprobs": 0, "logprob_token_ids": [65, 66]}},
    "allowed": {"sampling": {"seed": 2, "allowed_token_ids": [65, 66, 67, END]}},
    "bad words": {"sampling": {"seed": 2, "allowed_token_ids": [65, 66, 67], "bad_words": [[65, 66], [67, 67, 65]]}},
    "min_tokens": {
        "sampling": {"temperature": 0.0, "logit_bias": {END: 30.0}},
        "min_tokens": 9,
        "stop_token_ids": [END],
    },
    "stop tokens": {"sampling": {"seed": 21}, "stop_token_ids": list(range(0, 256, 16))},
    "json": {
        "sampling": {"seed": 7},
        "max_tokens": 200,
        "stop_token_ids": [END],
        "grammar": Grammar(GrammarKind.JSON_SCHEMA, json.dumps(PERSON)),
    },
    "call": {
        "sampling": {"seed": 9, "frequency_penalty": 0.5},
        "stop_token_ids": [END],
        "grammar": Grammar(GrammarKind.LARK, CALL),
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_byte_checkpoint(tmp_path_factory.mktemp("bytes"))
    make_model("llama", vocab_size=VOCAB_SIZE).save_pretrained(folder)
    return folder


def whole(feature: str) -> EngineRequest:
    fields = {"max_tokens": NUM_TOKENS, **FEATURES[feature]}
    prompt = random.Random(feature).choices(range(256), k=21)
    return EngineRequest(1, prompt, **{**fields, "sampling": SamplingParams(**fields["sampling"])})


def rest(request: EngineRequest, request_id: int, tokens: list[int], **fields: Any) -> EngineRequest:
    """What is left of it once it has these tokens."""
    return msgspec.structs.replace(
        request,
        request_id=request_id,
        prompt_token_ids=[*request.prompt_token_ids, *tokens],
        max_tokens=request.max_tokens - len(tokens),
        num_prior_tokens=len(tokens),
        **fields,
    )


def tokens_of(deltas: list[TokenDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def logprobs_of(deltas: list[TokenDelta]) -> list[TokenLogprobs]:
    return [entry for delta in deltas for entry in delta.logprobs or ()]


def check_invariants(engine: Engine) -> None:
    engine.check_invariants()
    assert not engine.has_work()


@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("is_fresh", [True, False], ids=["fresh engine", "same engine"])
def test_every_cut_gives_the_whole(folder: Path, feature: str, is_fresh: bool) -> None:
    """In the same engine the prior tokens' cache is found; in a fresh one everything is computed again."""
    request, engine = whole(feature), make_engine(folder)
    deltas = run(engine, [request])[1]
    tokens, logprobs = tokens_of(deltas), logprobs_of(deltas)
    assert len(tokens) > 3
    if is_fresh:
        engine = make_engine(folder, max_num_batched_tokens=64)
    rests = run(engine, [rest(request, k, tokens[:k]) for k in range(1, len(tokens))])
    for k, of_rest in rests.items():
        assert tokens_of(of_rest) == tokens[k:], f"cut after {k}"
        last, expected = of_rest[-1], deltas[-1]
        assert (last.finish_reason, last.stop_token_id) == (expected.finish_reason, expected.stop_token_id)
        assert all(delta.num_cached_tokens <= len(request.prompt_token_ids) for delta in of_rest)
        for entry, as_whole in zip(logprobs_of(of_rest), logprobs[k:], strict=True):
            assert (entry.token_id, entry.rank) == (as_whole.token_id, as_whole.rank)
            assert entry.logprob == pytest.approx(as_whole.logprob, abs=1e-4)
            assert dict(entry.top) == pytest.approx(dict(as_whole.top), abs=1e-4)
    check_invariants(engine)


def test_a_rest_cut_again_and_again_gives_the_whole(folder: Path) -> None:
    request = whole("frequency")
    tokens = tokens_of(run(make_engine(folder), [request])[1])
    for k in (5, 6, 17):
        request = rest(whole("frequency"), 1, tokens[:k])
        assert tokens_of(run(make_engine(folder), [request])[1]) == tokens[k:]


def test_prior_tokens_that_the_grammar_forbids_end_the_request_alone(folder: Path) -> None:
    engine = make_engine(folder)
    deltas = run(engine, [rest(whole("call"), 1, [*b"nonsense"]), rest(whole("call"), 2, [*b"<call>abc"])])
    assert deltas[1][-1].error is not None
    assert deltas[1][-1].error.code is ErrorCode.INVALID
    assert bytes(tokens_of(deltas[2])[:-1])[3:] == b"</call>"
    check_invariants(engine)


def test_prior_tokens_are_fewer_than_the_prompt_and_nobody_asks_about_it(folder: Path) -> None:
    engine = make_engine(folder)
    plain = EngineRequest(1, [1, 2, 3], 5)
    vector = Pooling(PoolingKind.LAST)
    bad = [
        msgspec.structs.replace(plain, request_id=1, num_prior_tokens=3),
        msgspec.structs.replace(plain, request_id=2, num_prior_tokens=-1),
        msgspec.structs.replace(plain, request_id=3, num_prior_tokens=1, pause_ms=float("nan")),
        msgspec.structs.replace(plain, request_id=4, num_prior_tokens=1, max_tokens=1, pooling=vector),
        msgspec.structs.replace(
            plain, request_id=5, num_prior_tokens=1, sampling=SamplingParams(num_prompt_logprobs=0)
        ),
    ]
    for of_request in run(engine, bad).values():
        assert of_request[-1].error is not None
        assert of_request[-1].error.code is ErrorCode.INVALID


def test_a_record_with_prior_tokens_replays_to_the_same_decisions(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "decisions"
    engine = make_engine(folder, decision_record=str(path))
    requests = [whole("seeded"), rest(whole("greedy"), 2, [65, 66, 67], pause_ms=1500.0, targets=Targets(itl_ms=50.0))]
    deltas = run(engine, requests)
    assert deltas[2][-1].finish_reason is FinishReason.LENGTH
    engine._core.close()  # type: ignore[attr-defined]
    assert replay(path).difference is None


def test_who_goes_on_is_not_refused_for_a_first_token_that_it_has_had(folder: Path) -> None:
    engine = make_engine(folder, max_ttft_ms=1e-6)
    engine.add(GATEWAY, whole("greedy"))
    engine.add(GATEWAY, msgspec.structs.replace(whole("seeded"), request_id=2))
    engine.add(GATEWAY, rest(whole("filters"), 3, [65, 66]))
    refused = [delta.request_id for delta in engine.take_deltas().get(GATEWAY, []) if delta.error]
    assert refused == [2]

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.stock.completion_body import OFFLINE_PRIORITY, completion_body
from gateway.stock.completion_events import CompletionEvents
from gateway.stock.errors import ServerLostError
from schedcore.api.types import EngineRequest, FinishReason, Grammar, GrammarKind, RequestClass, SamplingParams

REQUEST = EngineRequest(7, [1, 2], 10, SamplingParams(seed=3, num_logprobs=1), stop_token_ids=[9], priority=-1)


def event(**choice: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": "", **choice}]}).encode() + b"\n\n"


def test_token_ids_come_as_deltas_however_the_bytes_are_cut() -> None:
    stream = (
        b": comment\n\n" + event(token_ids=[4, 5]) + event(token_ids=[9], finish_reason="stop") + b"data: [DONE]\n\n"
    )
    for size in (1, 7, len(stream)):
        events = CompletionEvents(REQUEST, "http://s")
        deltas = [d for i in range(0, len(stream), size) for d in events.feed(stream[i : i + size])]
        assert [d.token_ids for d in deltas] == [[4, 5], [9]]
        assert deltas[-1].finish_reason is FinishReason.STOP
        assert deltas[-1].stop_token_id == 9
        assert events.is_over


def test_a_stop_of_the_servers_own_is_told_by_its_reason() -> None:
    events = CompletionEvents(REQUEST, "http://s")
    (delta,) = events.feed(event(token_ids=[4, 6], finish_reason="stop", stop_reason=6))
    assert delta.stop_token_id == 6


def test_length_and_a_final_event_without_tokens() -> None:
    (delta,) = CompletionEvents(REQUEST, "http://s").feed(event(token_ids=[], finish_reason="length"))
    assert (delta.finish_reason, delta.token_ids, delta.stop_token_id) == (FinishReason.LENGTH, [], None)


def test_logprobs_are_named_by_token_ids() -> None:
    said = {
        "tokens": ["token_id:4"],
        "token_logprobs": [-2.0],
        "top_logprobs": [{"token_id:4": -2.0, "token_id:8": -0.5}],
    }
    (delta,) = CompletionEvents(REQUEST, "http://s").feed(event(token_ids=[4], logprobs=said))
    assert delta.logprobs is not None
    assert (delta.logprobs[0].logprob, delta.logprobs[0].rank, delta.logprobs[0].top) == (-2.0, 2, [(8, -0.5)])


@pytest.mark.parametrize(
    "data",
    [
        b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n',
        b"data: nonsense\n\n",
        event(finish_reason="abort"),
        event(token_ids=[4], logprobs={"tokens": [], "token_logprobs": []}),
    ],
)
def test_what_is_no_completion_is_the_servers_fault(data: bytes) -> None:
    with pytest.raises(ServerLostError, match="http://s"):
        CompletionEvents(REQUEST, "http://s").feed(data)


def test_a_body_has_token_ids_and_says_no_priority_where_none_is_taken() -> None:
    body = json.loads(completion_body(REQUEST, "m", has_priority=False))
    assert body["prompt"] == [1, 2]
    assert body["return_token_ids"]
    assert body["ignore_eos"]
    assert body["seed"] == 3
    assert body["logprobs"] == 1
    assert "priority" not in body
    assert "cache_salt" not in body
    assert json.loads(completion_body(REQUEST, "m", has_priority=True))["priority"] == -1


def test_offline_work_runs_after_all_online_requests() -> None:
    offline = EngineRequest(1, [1], 1, request_class=RequestClass.OFFLINE)
    assert json.loads(completion_body(offline, "m", has_priority=True))["priority"] == OFFLINE_PRIORITY


@pytest.mark.parametrize(
    ("grammar", "wanted"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}'), {"json": {"type": "object"}}),
        (Grammar(GrammarKind.JSON_SCHEMA, "{}", has_space=False), {"json": {}, "disable_any_whitespace": True}),
        (Grammar(GrammarKind.CHOICE, '["a","b"]'), {"choice": ["a", "b"]}),
        (Grammar(GrammarKind.REGEX, "a+"), {"regex": "a+"}),
        (Grammar(GrammarKind.EBNF, 'root ::= "a"'), {"grammar": 'root ::= "a"'}),
    ],
)
def test_grammars_by_vllms_names(grammar: Grammar, wanted: dict[str, Any]) -> None:
    request = EngineRequest(1, [1], 1, grammar=grammar)
    assert json.loads(completion_body(request, "m", has_priority=True))["structured_outputs"] == wanted

"""What counts as a token in a stream, whoever sent it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bench.lib.load.completion_events import read_events
from bench.lib.load.request_trace import RequestTrace

USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 8}}


def read(*chunks: dict[str, Any]) -> RequestTrace:
    """Chunk i arrives at second i."""
    trace = RequestTrace(arrival=0.0)
    read_events(trace, [(float(i), b"data: " + json.dumps(chunk).encode()) for i, chunk in enumerate(chunks)])
    return trace


def text(piece: str, reason: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": piece, "finish_reason": reason}]}


def delta(reason: str | None = None, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": reason}]}


def test_every_chunk_of_a_completion_is_one_time() -> None:
    trace = read(*[text("t")] * 8, USAGE)
    assert trace.chunk_times == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (trace.num_prompt_tokens, trace.num_output_tokens) == (3, 8)


def test_role_and_end_of_a_chat_are_no_tokens() -> None:
    trace = read(delta(role="assistant", content=""), *[delta(content="t")] * 5, delta(reason="stop"), USAGE)
    assert trace.chunk_times == [1, 2, 3, 4, 5]


def test_a_last_token_may_come_with_the_end() -> None:
    assert read(text("t"), text("t", "length"), USAGE).chunk_times == [0, 1]


def test_half_a_character_is_a_token() -> None:
    assert read(text(""), text("é"), text("", "stop"), USAGE).chunk_times == [0, 1]


def test_where_all_tokens_are_silent_the_end_stands_for_them() -> None:
    assert read(text("", "length"), USAGE).chunk_times == [0]


@pytest.mark.parametrize("num_before", [0, 1, 20])
def test_an_error_is_seen_wherever_it_comes(num_before: int) -> None:
    assert "boom" in read(*[text("t")] * num_before, {"error": {"message": "boom"}}).error

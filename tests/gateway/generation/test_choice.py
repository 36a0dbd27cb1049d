"""A choice's text, counts and end do not depend on how its tokens arrive."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.byte_tokenizer import END, byte_tokenizer
from gateway.generation.choice import Choice, ChoiceOptions
from gateway.model.stop_strings import StopStrings
from gateway.model.tokenize import Tokenizer
from schedcore.api.types import FinishReason, TokenDelta, TokenLogprobs

TOKENIZER = Tokenizer(byte_tokenizer())


def choice(**options: Any) -> Choice:
    return Choice(0, 0, TOKENIZER.detokenizer([], True), ChoiceOptions(**options))


def deltas(ids: list[int], sizes: list[int], reason: FinishReason) -> list[TokenDelta]:
    """`ids` in deltas of the given sizes; the rest in the last one, which is final."""
    result, start = [], 0
    for size in sizes:
        if start + size >= len(ids):
            break
        result.append(TokenDelta(0, ids[start : start + size], logprobs=logprobs(ids[start : start + size])))
        start += size
    stop = ids[-1] if reason is FinishReason.STOP else None
    return [*result, TokenDelta(0, ids[start:], reason, stop, logprobs=logprobs(ids[start:]))]


def logprobs(ids: list[int]) -> list[TokenLogprobs]:
    return [TokenLogprobs(token_id, -1.0, 1) for token_id in ids]


def run(c: Choice, arriving: list[TokenDelta]) -> str:
    text = ""
    for delta in arriving:
        if c.is_finished:
            break
        text += c.decode(delta)
    return text


@given(
    text=st.text("ab€", min_size=1, max_size=12),
    sizes=st.lists(st.integers(1, 4), max_size=40),
    stops=st.lists(st.text("ab€", min_size=1, max_size=3), max_size=2),
    includes_stop=st.booleans(),
    min_tokens=st.integers(0, 6),
    reason=st.sampled_from([FinishReason.STOP, FinishReason.LENGTH]),
)
def test_nothing_depends_on_how_tokens_arrive(
    text: str, sizes: list[int], stops: list[str], includes_stop: bool, min_tokens: int, reason: FinishReason
) -> None:
    ids = [*text.encode(), END] if reason is FinishReason.STOP else list(text.encode())
    options = {
        "stop_strings": StopStrings(stops) if stops else None,
        "includes_stop": includes_stop,
        "min_tokens": min_tokens,
        "keeps_logprobs": True,
        "keeps_token_ids": True,
    }
    one, many = choice(**options), choice(**options)
    assert run(one, deltas(ids, [1] * len(ids), reason)) == run(many, deltas(ids, sizes, reason))
    assert (one.finish_reason, one.num_tokens) == (many.finish_reason, many.num_tokens)
    assert one.take_token_ids() == many.take_token_ids() == ids[: one.num_tokens]
    assert len(one.take_logprobs()) == len(many.take_logprobs()) == one.num_tokens


def test_stop_token_is_counted_and_hidden() -> None:
    c = choice()
    assert run(c, deltas([*b"ab", ord("c")], [1], FinishReason.STOP)) == "ab"
    assert (c.finish_reason, c.num_tokens) == ("stop", 3)


def test_stop_token_shows_on_request() -> None:
    assert run(choice(includes_stop=True), deltas([*b"ab", ord("c")], [], FinishReason.STOP)) == "abc"


def test_what_may_have_been_a_stop_string_is_shown_at_the_end() -> None:
    c = choice(stop_strings=StopStrings(["abc"]))
    assert run(c, deltas([*b"xab"], [1, 1], FinishReason.LENGTH)) == "xab"
    assert c.finish_reason == "length"


def test_character_cut_by_the_length_limit_is_marked() -> None:
    assert run(choice(), deltas([*"é".encode()][:1], [], FinishReason.LENGTH)) == "\ufffd"


@pytest.mark.parametrize("reason", [FinishReason.LENGTH, FinishReason.STOP])
def test_engine_need_not_be_told_what_it_ended_itself(reason: FinishReason) -> None:
    c = choice(stop_strings=StopStrings(["b"]))
    run(c, [TokenDelta(0, [*b"ab"], reason)])
    assert c.finish_reason == "stop"
    assert not c.stopped_by_gateway


def test_discarded_output_leaves_no_trace() -> None:
    c = choice(discards_output=True)
    assert run(c, deltas([65], [], FinishReason.LENGTH)) == ""
    assert (c.finish_reason, c.num_tokens) == ("length", 0)

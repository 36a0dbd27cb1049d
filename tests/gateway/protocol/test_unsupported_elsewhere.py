"""The same of the other routes: what would change an answer and is not built is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.messages import decode_messages
from gateway.protocol.responses import decode_responses
from gateway.protocol.vectors.embeddings import decode_embeddings
from gateway.protocol.vectors.ranking import decode_rerank, decode_score

RESPONSE = (decode_responses, {"input": "Hello"})
MESSAGE = (decode_messages, {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5})
EMBEDDING = (decode_embeddings, {"input": "Hello"})
RANKING = (decode_rerank, {"query": "Hello", "documents": ["a"]})
SCORE = (decode_score, {"text_1": "Hello", "text_2": "a"})

# what is asked, field, values that ask for nothing, one that asks for something
FIELDS: list[tuple[tuple[Callable[[bytes], Any], dict[str, Any]], str, list[Any], Any]] = [
    (RESPONSE, "include_reasoning", [None, True], False),
    (RESPONSE, "previous_input_messages", [None, []], [{"role": "user"}]),
    (RESPONSE, "enable_response_messages", [None, False], True),
    (RESPONSE, "vllm_xargs", [None, {}], {"a": 1}),
    (MESSAGE, "vllm_xargs", [None], {"a": 1}),
    (MESSAGE, "kv_transfer_params", [None], {"a": 1}),
    (MESSAGE, "watermarking", [None], {"a": 1}),
    (EMBEDDING, "padding", [None, "do_not_pad"], "max_length"),
    *(
        (asked, name, off, on)
        for asked in (RANKING, SCORE)
        for name, off, on in (
            ("max_tokens_per_query", [None], 5),
            ("max_tokens_per_doc", [None], 5),
            ("instruction", [None, ""], "Rank."),
            ("chat_template_kwargs", [None, {}], {"a": 1}),
            ("padding", [None, "do_not_pad"], "max_length"),
            ("use_activation", [None], False),
        )
    ),
]


@pytest.mark.parametrize(("asked", "name", "off", "on"), FIELDS)
def test_what_would_change_the_answer_is_refused(asked: Any, name: str, off: list[Any], on: Any) -> None:
    decode, body = asked
    for value in off:
        decode(json.dumps(body | {name: value}).encode())
    with pytest.raises(InvalidRequestError, match=f"'{name}' is not supported") as refused:
        decode(json.dumps(body | {name: on}).encode())
    assert refused.value.param == name

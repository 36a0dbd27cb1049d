"""What a client is told: bounded, whatever it sent, and made in linear time."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fakes.fake_engine import FakeEngine
from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from gateway.protocol.advisories import decode_advisory
from gateway.protocol.batches import decode_create_batch
from gateway.protocol.chat import decode_chat
from gateway.protocol.errors import MAX_MESSAGE_CHARACTERS, InvalidRequestError, shortened
from gateway.protocol.messages import decode_messages

MESSAGES = [{"role": "user", "content": "x"}]
BATCH = {"input_file_id": "file-1", "completion_window": "24h"}
WRONG_VALUES = {
    "service_tier": (decode_chat, lambda text: {"messages": MESSAGES, "service_tier": text}),
    "role": (decode_messages, lambda text: {"messages": [{"role": text, "content": "x"}], "max_tokens": 1}),
    "event": (decode_advisory, lambda text: {"event": text}),
    "endpoint": (decode_create_batch, lambda text: BATCH | {"endpoint": text}),
}


def message(decode: Any, body: bytes) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        decode(body)
    return caught.value.message


@pytest.mark.parametrize("field", WRONG_VALUES)
@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_a_wrong_value_is_reported_in_linear_time(field: str, text: str) -> None:
    decode, fields = WRONG_VALUES[field]
    ratio = growth(
        lambda body: message(decode, body), lambda n: json.dumps(fields(HOSTILE_TEXTS[text](n))).encode(), 20_000
    )
    assert ratio < MAX_RATIO


@pytest.mark.parametrize("field", WRONG_VALUES)
def test_a_value_that_looks_like_a_location_is_none(field: str) -> None:
    decode, fields = WRONG_VALUES[field]
    with pytest.raises(InvalidRequestError) as caught:
        decode(json.dumps(fields("a - at `$.b` - at `key` in `$.c`")).encode())
    assert caught.value.param == ("messages[0].role" if field == "role" else field)


def bias(fields: str, rest: str = "}") -> bytes:
    return (json.dumps({"messages": MESSAGES})[:-1] + f', "logit_bias": {{{fields}}}' + rest).encode(
        errors="surrogateescape"
    )


def test_every_key_that_is_no_token_id_is_named() -> None:
    told = message(decode_chat, bias('"bad1": 1, "7": 2, "-1": 3, "bad2": 4'))
    assert "'logit_bias'" in told
    assert "'bad1', '-1', 'bad2'" in told
    assert len(message(decode_chat, bias(f'"{"k" * 100_000}": 1'))) <= MAX_MESSAGE_CHARACTERS


@pytest.mark.parametrize("rest", [', "n": ', ', "a": "\udcff"}', ', "a": ' + "[" * 100_000])
def test_a_wrong_key_is_reported_whatever_follows(rest: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode_chat(bias('"bad": 1', rest))
    assert (caught.value.param, caught.value.status) == ("logit_bias", 400)


@pytest.mark.parametrize("body", [{"model": "m" * 100_000}, {"service_tier": "s" * 100_000}, {"n": "n" * 100_000}])
async def test_what_is_echoed_is_cut(serve: Any, body: dict[str, Any]) -> None:
    client = await serve(FakeEngine())
    response = await client.post("/v1/chat/completions", json={"messages": MESSAGES} | body)
    assert response.status in (400, 404)
    assert len((await response.json())["error"]["message"]) <= MAX_MESSAGE_CHARACTERS


async def test_a_long_path_and_session_are_cut(serve: Any) -> None:
    client = await serve(FakeEngine())
    for path in ("/v1/" + "x" * 5000, "/v1/sessions/" + "x" * 5000):
        response = await client.get(path)
        assert response.status == 404
        assert len((await response.json())["error"]["message"]) <= MAX_MESSAGE_CHARACTERS


def test_a_cut_message_keeps_beginning_and_end() -> None:
    text = shortened("The model '" + "m" * 1_000_000 + "' does not exist.")
    assert text.startswith("The model 'mmm")
    assert text.endswith("mmm' does not exist.")
    assert len(text) == MAX_MESSAGE_CHARACTERS
    assert shortened("short") == "short"

"""Long strings in parts: whatever the body, the outcome is the plain decoder's."""

import json
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.chat import ChatRequest
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.decoding import long_strings
from gateway.protocol.decoding.long_strings import LONG_BYTES, PART_BYTES, STAND_IN_CHARACTERS, decode_in_parts
from gateway.protocol.responses import ResponsesBody
from gateway.protocol.server.document import openapi_document

_anything = msgspec.json.Decoder(Any)
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])


def outcome(decode: Any, *arguments: Any) -> Any:
    try:
        return decode(*arguments)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return type(error), str(error)


def assert_same(decoder: Any, body: bytes) -> None:
    plain = outcome(decoder.decode, body)
    found = outcome(decode_in_parts, decoder, body)
    assert found == plain


ALPHABETS = (
    "abc ",
    'a\\"',
    '\\"',
    "\U0001f600\u4e16",
    "\ud7ff\ue000\uffff",
    "\n\t\\",
    '\u4e16\U0001f600"\\ \x1f\x7f',
    "_<>",
)


def long_text(alphabet: str, seed: int, size: int = LONG_BYTES + 1000) -> str:
    return "".join(random.Random(seed).choices(alphabet, k=size))


@pytest.mark.parametrize("alphabet", ALPHABETS)
@pytest.mark.parametrize("is_ascii", [True, False])
def test_a_long_text_is_what_the_plain_decoder_makes_of_it(alphabet: str, is_ascii: bool) -> None:
    for seed in range(3):
        text = long_text(alphabet, seed)
        body = json.dumps({"prompt": text, "max_tokens": 3}, ensure_ascii=is_ascii).encode()
        found = decode_in_parts(msgspec.json.Decoder(CompletionRequest), body)
        assert found.prompt == text
        assert found == msgspec.json.decode(body, type=CompletionRequest)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_value_with_long_strings_in_it(data: st.DataObject) -> None:
    with pytest.MonkeyPatch.context() as patch:  # so that small ones are long
        patch.setattr(long_strings, "LONG_BYTES", 64)
        patch.setattr(long_strings, "PART_BYTES", data.draw(st.integers(16, 40)))
        patch.setattr(long_strings, "MASKED_BYTES", data.draw(st.integers(2, 40)))
        text = st.text(st.sampled_from('ab"\\\u4e16\U0001f600\n'), max_size=300) | st.text(max_size=100)
        values = st.recursive(
            text | st.integers(-5, 5) | st.none(),
            lambda v: st.lists(v, max_size=5) | st.dictionaries(text, v, max_size=5),
        )
        value = data.draw(values)
        body = json.dumps(value, ensure_ascii=data.draw(st.booleans())).encode()
        assert_same(_anything, body)
        cut = data.draw(st.integers(0, len(body)))
        assert_same(_anything, body[:cut])  # no JSON
        assert_same(_anything, body[:cut] + data.draw(st.binary(max_size=3)) + body[cut:])


@pytest.mark.parametrize("kind", [ChatRequest, ResponsesBody, Any])
def test_strings_everywhere(kind: Any) -> None:
    first, second = long_text('a\\" \u4e16', 1), long_text("\U0001f600", 2)
    body = {
        "model": "m",
        "messages": [
            {"role": "user", "content": first},
            {"role": "user", "content": [{"type": "text", "text": second}, {"type": "text", "text": first}]},
        ],
        "input": second,
        "metadata": {"x": first},
        "chat_template_kwargs": {second: [first, {"deep": second}]},
        "nobody_knows": first,
    }
    for is_ascii in (True, False):
        assert_same(msgspec.json.Decoder(kind), json.dumps(body, ensure_ascii=is_ascii).encode())


def test_raw_values_stay_as_they_came() -> None:
    body = json.dumps({"a": ["x", long_text("\u4e16", 0), long_text("b", 1)], "c": long_text('"', 2)}).encode()
    assert_same(_raw, body)
    assert b"".join(decode_in_parts(_raw, body).values()) in body.replace(b', "c": ', b"")


@pytest.mark.parametrize(
    "body",
    [
        b'{"a": "' + b"x" * 2 * LONG_BYTES,
        b'{"a": "' + b"x" * 2 * LONG_BYTES + b"\\",
        b'{"a": "' + b"x" * 2 * LONG_BYTES + b'\\"}',
        b'{"a": "' + b"\xff\xfe" * LONG_BYTES + b'"}',
        b'{"a": "' + b"\x00\x01" * LONG_BYTES + b'"}',
        b'{"a": "' + b"\\ud83d" * LONG_BYTES + b'"}',
        b'{"a": "' + b"\\ude00" * LONG_BYTES + b'"}',
        b'{"a": "' + b"\x80" * LONG_BYTES + b'"}',
        b'{"a": "' + b"\\q" * LONG_BYTES + b'"}',
        b"1" * 2 * LONG_BYTES,
        b" " * 2 * LONG_BYTES,
        b'"' + b"x" * LONG_BYTES + b'" "',
    ],
    ids=range(12),
)
def test_what_is_no_json_is_refused_in_the_same_words(body: bytes) -> None:
    assert isinstance(outcome(_anything.decode, body), tuple)
    assert_same(_anything, body)


def test_a_wrong_value_is_named_as_it_came() -> None:
    body = json.dumps({"prompt": "a", "service_tier": long_text("\u4e16", 0)}).encode()
    assert_same(msgspec.json.Decoder(CompletionRequest), body)


def test_each_part_is_short_however_a_text_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting:
        sizes: list[int] = []  # noqa: RUF012

        def decode(self, part: bytes) -> str:
            self.sizes.append(len(part))
            return str(msgspec.json.decode(part))

    monkeypatch.setattr(long_strings, "_string", Counting())
    for alphabet in ALPHABETS:
        text = long_text(alphabet, 0)
        assert decode_in_parts(_anything, json.dumps(text).encode()) == text
    assert max(Counting.sizes) <= PART_BYTES + 2
    assert min(Counting.sizes) > 0


def test_no_limit_of_a_string_is_above_the_length_of_what_stands_in_for_it() -> None:
    limits: list[int] = []

    def collect(value: Any) -> None:
        if isinstance(value, dict):
            if isinstance(limit := value.get("maxLength"), int):
                limits.append(limit)
            for inner in value.values():
                collect(inner)
        elif isinstance(value, list):
            for inner in value:
                collect(inner)

    collect(json.loads(openapi_document("1", has_keys=True)))
    assert limits
    assert max(limits) < STAND_IN_CHARACTERS

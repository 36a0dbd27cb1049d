"""An error about a value that is not in a list says what is."""

from __future__ import annotations

from typing import Literal

import msgspec
import pytest

from gateway.protocol.advisories import AdvisoryRequest
from gateway.protocol.chat import ChatRequest
from gateway.protocol.decoding.allowed_values import allowed_values
from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError


class Inner(msgspec.Struct):
    colour: Literal["red", "blue"] | None = None


class Outer(msgspec.Struct):
    items: list[Inner] | str
    names: dict[str, Inner] = {}
    size: int = 0


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("items[0].colour", {"red", "blue"}),
        ("items[...].colour", {"red", "blue"}),
        ("names[...].colour", {"red", "blue"}),
        ("size", set()),
        ("items[0].nothing", set()),
    ],
)
def test_lists_what_is_allowed_where_the_path_leads(path: str, values: set[str]) -> None:
    assert set(allowed_values(Outer, path)) == values


@pytest.mark.parametrize(
    ("request_type", "body", "param", "value"),
    [
        (ChatRequest, b'{"service_tier":"me","messages":[{"role":"user"}]}', "service_tier", "flex"),
        (AdvisoryRequest, b'{"session_id":"s","event":"sleep"}', "event", "agent_step"),
    ],
)
def test_a_refusal_names_the_allowed_values(request_type: type, body: bytes, param: str, value: str) -> None:
    with pytest.raises(InvalidRequestError, match=f"expected one of .*{value}") as refusal:
        decode_json(msgspec.json.Decoder(request_type), body)
    assert refusal.value.param == param

"""The client's parsers take an answer four times as long in about four times the time, however it arrives."""

from __future__ import annotations

import pytest

from fakes.growth import MAX_RATIO, growth
from fakes.hostile_texts import HOSTILE_TEXTS
from hocket._streams.sse import SSEDecoder


def one_event(text: str) -> bytes:
    return b"data: " + text.replace("\n", "\ndata: ").encode() + b"\n\n"


def many_events(text: str) -> bytes:
    return b"".join(b"data: " + text[i : i + 20].encode() + b"\n\n" for i in range(0, len(text), 20))


def raw(text: str) -> bytes:
    return text.replace("\n", "\r").encode()


@pytest.mark.parametrize("piece", [1, 1000, 10**9])
@pytest.mark.parametrize("make", [one_event, many_events, raw])
@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_events_are_read_in_linear_time(text: str, make: object, piece: int) -> None:
    assert callable(make)

    def read(content: bytes) -> None:
        decoder = SSEDecoder()
        for start in range(0, len(content), piece):
            decoder.feed(content[start : start + piece])

    assert growth(read, lambda n: make(HOSTILE_TEXTS[text](n)), 10_000) < MAX_RATIO

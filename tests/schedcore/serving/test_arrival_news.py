"""What a gateway hears of requests that come through others."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from fakes.manual_clock import ManualClock
from schedcore.api.types import EngineRequest, RequestClass
from schedcore.api.wire import ArrivalNote
from schedcore.routing.route import prefix_keys, session_digest
from schedcore.serving import arrival_news
from schedcore.serving.arrival_news import TOKENS_PER_KEY, ArrivalNews, arrival_note

ONE, TWO, THREE = GATEWAYS = (b"gateway-1", b"gateway-2", b"gateway-3")


def asked(request_id: int, num_tokens: int = 300, **fields: object) -> EngineRequest:
    return msgspec.structs.replace(EngineRequest(request_id, list(range(num_tokens)), 4), **fields)


def test_who_wants_hears_once_of_what_the_others_had_and_when() -> None:
    clock = ManualClock()
    news = ArrivalNews(clock)
    news.join(ONE)
    news.join(TWO)
    news.note_request(ONE, asked(1))
    clock.advance(2.0)
    news.note_request(THREE, asked(1, 200, age_ms=500.0))  # that has waited at its gateway
    clock.advance(1.0)
    assert [(ago, note.num_tokens) for ago, note in news.take(ONE)] == [(1.5, 200)]
    assert [(ago, note.num_tokens) for ago, note in news.take(TWO)] == [(3.0, 300), (1.5, 200)]
    assert [news.take(gateway) for gateway in GATEWAYS] == [[], [], []]


def test_who_is_gone_or_never_asked_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    news = ArrivalNews(ManualClock())
    news.join(ONE)
    news.note_request(TWO, asked(1))
    news.forget(ONE)
    monkeypatch.setattr(arrival_news, "arrival_note", lambda _: pytest.fail("nobody wants it"))
    news.note_request(TWO, asked(2))
    news.join(ONE)
    news.note_request(ONE, asked(3))  # its own
    assert news.take(ONE) == []


def test_a_note_has_what_counting_needs() -> None:
    request = asked(1, tenant="t", session_id="s", cache_salt="c")
    keys = prefix_keys(session_digest("", "c", "c"), np.arange(300, dtype=np.int32), TOKENS_PER_KEY)
    assert len(keys) == 2
    assert arrival_note(request) == ArrivalNote(300, 4, session_digest("t", "c", "s"), keys.tobytes())
    other_salt = arrival_note(asked(1, tenant="t", session_id="s", cache_salt="d"))
    assert other_salt is not None
    assert not set(np.frombuffer(other_salt.keys, "<u8")) & set(keys)


@pytest.mark.parametrize("fields", [{"request_class": RequestClass.OFFLINE}, {"num_prior_tokens": 3}])
def test_offline_work_and_what_goes_on_from_elsewhere_is_not_told(fields: dict[str, object]) -> None:
    assert arrival_note(asked(1, **fields)) is None


def test_of_many_the_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrival_news, "MAX_UNTOLD", 3)
    news = ArrivalNews(ManualClock())
    news.join(ONE)
    for number in range(5):
        news.note_request(TWO, asked(number, 10 + number))
    assert [note.num_tokens for _, note in news.take(ONE)] == [12, 13, 14]

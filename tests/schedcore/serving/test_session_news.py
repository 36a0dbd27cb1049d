"""What each gateway hears of others' sessions."""

from __future__ import annotations

import pytest

from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest
from schedcore.api.wire import SessionNote
from schedcore.routing.route import session_digest
from schedcore.serving import session_news
from schedcore.serving.session_news import SessionNews

ONE, TWO, LATE = b"gateway-1", b"gateway-2", b"gateway-3"


def request(session: str, num_tokens: int = 3) -> EngineRequest:
    return EngineRequest(1, [7] * num_tokens, 4, tenant="t", session_id=session)


def note(session: str, num_tokens: int = 3, *, is_expected: bool = False) -> SessionNote:
    return SessionNote(session_digest("t", "", session), num_tokens, is_expected)


def test_a_session_is_told_to_the_gateways_that_did_not_send_it() -> None:
    news = SessionNews()
    news.note_request(ONE, request("a"))
    news.note_request(TWO, request("b"))
    news.note_request(TWO, EngineRequest(2, [7], 4))  # of no session
    assert not SessionNews().has_more(ONE)
    assert (news.take(ONE), news.take(TWO)) == ([note("b")], [note("a")])
    assert (news.take(ONE), news.take(TWO)) == ([], [])
    assert not news.has_more(ONE)


def test_the_last_word_on_a_session_counts() -> None:
    news = SessionNews()
    news.note_request(ONE, request("a", 3))
    news.note_advisory(ONE, Advisory("a", AdvisoryEvent.TYPING, "t", draft_token_ids=[1, 2]))
    assert news.take(TWO) == [note("a", 2, is_expected=True)]
    news.note_request(ONE, request("a", 9))
    news.note_request(TWO, request("a", 12))
    assert (news.take(ONE), news.take(TWO)) == ([note("a", 12)], [])


def test_an_advisory_that_announces_nothing_is_no_news() -> None:
    news = SessionNews()
    news.note_advisory(ONE, Advisory("a", AdvisoryEvent.RELEASE, "t"))
    assert news.take(TWO) == []


def test_whoever_sends_all_has_nothing_to_hear() -> None:
    news = SessionNews()
    for i in range(5):
        news.note_request(ONE, request(f"{i}"))
        assert not news.has_more(ONE)
    assert news.has_more(TWO)


def test_who_comes_late_hears_of_the_last_ones_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_news, "MAX_SESSIONS", 8)
    monkeypatch.setattr(session_news, "MAX_AT_ONCE", 3)
    news = SessionNews()
    for i in range(20):
        news.note_request(ONE, request(f"{i}"))
    heard: list[SessionNote] = []
    while news.has_more(LATE):
        heard += (piece := news.take(LATE))
        assert len(piece) <= 3
    assert heard == [note(f"{i}") for i in range(12, 20)]
    news.forget(LATE)
    assert news.take(LATE) == heard[:3]

"""Sessions: the conversation, and notices that the user types."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import httpx
import pytest

import hocket
from fakes.chat_server import FakeChatServer
from fakes.eventually import eventually, wait_until
from fakes.http_script import Script, chat_events, refusal, streamed
from hocket import AsyncClient, Client, Message
from hocket._exceptions import RateLimitError, ServerError
from hocket._sessions.typing import PAUSE_SECONDS, TypingPace, TypingThread


def test_a_session_keeps_its_conversation_and_names_itself(server: FakeChatServer) -> None:
    with Client(server.url) as client, client.session(messages=[Message("system", "Be brief.")]) as session:
        session.chat("Hello!", temperature=0).final()
        session.chat("And?").final()
    first, second = server.received
    assert first.body["session_id"] == second.body["session_id"] == session.id
    assert [m["content"] for m in second.body["messages"]] == ["Be brief.", "Hello!", "You said: Hello!", "And?"]
    assert session.messages[-1] == Message("assistant", "You said: And?")
    assert server.notices[-1].path == f"/v1/sessions/{session.id}"


def test_an_answer_that_is_left_early_stays_as_far_as_it_came() -> None:
    client = Client("http://server", transport=Script(streamed(*chat_events(["Once", " upon"]))))
    session = client.session("s")
    with session.chat("A story!") as stream:
        next(chunk for chunk in stream if chunk.text)
    assert session.messages == [Message("user", "A story!"), Message("assistant", "Once")]


def test_a_question_that_is_refused_is_not_kept() -> None:
    client = Client("http://server", transport=Script(refusal(400)))
    session = client.session()
    with pytest.raises(hocket.BadRequestError), session.chat("Hello!"):
        pass
    assert session.messages == []


def test_typing_is_told_once_and_the_latest_draft_last() -> None:
    sent: list[str | None] = []
    go_on = threading.Event()

    def send(draft: str | None) -> None:
        sent.append(draft)
        go_on.wait(10)

    typing = TypingThread(send, interval=0.0)
    typing.offer("a")
    wait_until(lambda: sent)
    for draft in ("ab", "abc", "abcd"):
        typing.offer(draft)
    go_on.set()
    wait_until(lambda: len(sent) == 2)
    typing.close()
    typing.offer("abcde")
    assert sent == ["a", "abcd"]


def test_what_was_typed_before_the_message_went_is_not_told_after_it() -> None:
    sent: list[str | None] = []
    typing = TypingThread(sent.append, interval=3600.0)
    typing.offer("a")
    wait_until(lambda: sent)
    typing.offer("ab")
    typing.drop()
    typing.close()
    assert sent == ["a"]


def test_typing_never_raises(server: FakeChatServer) -> None:
    with FakeChatServer() as gone:
        url = gone.url
    client = Client(url)
    session = client.session(typing_interval=0.0)
    for draft in (None, "Hel", "Hello"):
        session.typing(draft)
    session.close()
    client.close()
    session.typing("Hello!")
    assert session.messages == []


def test_a_server_without_advisories_is_asked_once(server: FakeChatServer) -> None:
    server.knows_sessions = False
    with Client(server.url) as client:
        session = client.session(typing_interval=0.0)
        session.typing()
        wait_until(lambda: session._typing._pace.is_off)
        session.typing()
        session.close()
    assert [notice.path for notice in server.notices if notice.path == "/v1/advisories"] == ["/v1/advisories"]


def test_a_draft_takes_the_conversation_along(server: FakeChatServer) -> None:
    with Client(server.url) as client, client.session("s", messages=[Message("user", "Hi")]) as session:
        session.typing("Tell me")
        wait_until(lambda: server.notices)
    assert server.notices[0].body == {
        "session_id": "s",
        "event": "typing",
        "messages": [{"role": "user", "content": "Hi"}],
        "draft": "Tell me",
    }


@pytest.mark.parametrize(
    ("error", "wait"),
    [
        (RateLimitError("slow", status_code=429, retry_after=9.0), 9.0),
        (ServerError("no", status_code=503), PAUSE_SECONDS),
    ],
)
def test_a_server_that_is_overwhelmed_is_left_alone_for_a_while(error: Exception, wait: float) -> None:
    pace = TypingPace(0.5)
    pace.sent(10.0)
    pace.failed(error, 10.1)
    assert pace.delay(10.1) == pytest.approx(wait)
    assert not pace.is_off


def test_agents_announce_their_next_step(server: FakeChatServer) -> None:
    with Client(server.url) as client:
        status = client.advise("plan/17", eta_ms=4000, messages="Go on.")
        assert (status.id, status.is_known, status.tiers.device.bytes, status.lease_ms) == ("plan/17", True, 700, 3e4)
        session = client.session("plan/17")
        assert session.status().num_tokens == 7
        assert session.cancel().action == "pin"
        assert session.advise(lease_ms=5).is_known
    advised, looked, cancelled, again = server.notices
    assert advised.body == {
        "session_id": "plan/17",
        "event": "agent_step",
        "eta_ms": 4000,
        "messages": [{"role": "user", "content": "Go on."}],
    }
    assert looked.path == "/v1/sessions/plan/17"
    assert (cancelled.body["event"], again.body["lease_ms"]) == ("cancel", 5)


def test_an_advisory_is_not_repeated() -> None:
    script = Script(httpx.Response(503), httpx.Response(200))
    with pytest.raises(hocket.ServiceUnavailableError):
        Client("http://server", transport=script).advise("s")
    assert len(script.requests) == 1


async def test_async_sessions_do_the_same(server: FakeChatServer) -> None:
    async with AsyncClient(server.url) as client:
        async with client.session("s", typing_interval=0.0) as session:
            session.typing("Hel")
            await eventually(lambda: server.notices)
            await session.chat("Hello!").final()
            assert (await session.status()).num_tokens == 7
            assert (await session.advise()).is_known
            assert (await session.cancel()).is_known
        assert [m.content for m in session.messages] == ["Hello!", "You said: Hello!"]
        assert (await client.advise("t", "typing")).id == "t"
    assert server.received[-1].body["session_id"] == "s"
    paths = [notice.path for notice in server.notices]
    assert paths == ["/v1/advisories", "/v1/sessions/s", *["/v1/advisories"] * 2, "/v1/sessions/s", "/v1/advisories"]


async def test_async_typing_never_raises_and_ends_with_the_session() -> None:
    async with AsyncClient("http://server", transport=Script(refusal(503), refusal(503))) as client:
        session = client.session()
        session.typing()
        await eventually(lambda: session._typing._pace.delay(0.0) > 0)
        session.typing("more")
        await session.close()
    assert session._typing._task is not None
    assert session._typing._task.done()


def test_async_typing_outside_of_a_loop_is_lost_quietly(make_async: Callable[[], AsyncClient]) -> None:
    session = make_async().session()
    session.typing()
    assert session._typing._task is None


@pytest.fixture
def make_async() -> Callable[[], AsyncClient]:
    return lambda: AsyncClient("http://server", transport=Script())


def test_the_async_pace_waits_for_the_latest_draft() -> None:
    async def run() -> list[str | None]:
        sent: list[str | None] = []
        held = asyncio.Event()

        async def send(draft: str | None) -> None:
            sent.append(draft)
            await held.wait()

        task = hocket._sessions.typing.TypingTask(send, 0.0)
        task.offer("a")
        await eventually(lambda: sent)
        task.offer("ab")
        task.offer("abc")
        held.set()
        await eventually(lambda: len(sent) == 2)
        return sent

    assert asyncio.run(run()) == ["a", "abc"]

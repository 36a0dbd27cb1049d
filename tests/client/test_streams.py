"""Streams without a socket, each test for `Stream` and `AsyncStream`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

import hocket
from fakes.http_script import Pieces, Script, chat_answer, chat_events, event, refusal, streamed
from hocket import AsyncClient, Client
from hocket._accumulate import ChatAccumulator
from hocket._calls import chat_stream
from hocket._options import Options
from hocket._streams.stream import BaseStream

ANSWER = ["Hel", "lo 🦉", "!"]


@dataclass
class Reading:
    """What a reader of a stream saw."""

    texts: list[str] = field(default_factory=list)
    stream: Any = None
    error: hocket.HocketError | None = None


def read_sync(script: Script, stop_after: int = 1000, **params: Any) -> Reading:
    reading = Reading()
    with Client("http://server", transport=script) as client:
        reading.stream = client.chat.stream("Hello!", **params)
        try:
            with reading.stream as stream:
                for chunk in itertools.islice(stream, stop_after):
                    reading.texts.append(chunk.text)
        except hocket.HocketError as error:
            reading.error = error
    return reading


def read_async(script: Script, stop_after: int = 1000, **params: Any) -> Reading:
    async def read() -> Reading:
        reading = Reading()
        async with AsyncClient("http://server", transport=script) as client:
            reading.stream = client.chat.stream("Hello!", **params)
            try:
                async with reading.stream as stream:
                    async for chunk in stream:
                        reading.texts.append(chunk.text)
                        if len(reading.texts) == stop_after:
                            break
            except hocket.HocketError as error:
                reading.error = error
        return reading

    return asyncio.run(read())


Read = Callable[..., Reading]


@pytest.fixture(params=[read_sync, read_async], ids=["sync", "async"])
def read(request: pytest.FixtureRequest) -> Read:
    reader: Read = request.param
    return reader


@pytest.fixture(autouse=True)
def no_naps(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nap(seconds: float) -> None:
        return None

    monkeypatch.setattr("hocket._connection.time.sleep", lambda seconds: None)
    monkeypatch.setattr("hocket._connection.asyncio.sleep", nap)


def test_texts_arrive_in_order_and_add_up(read: Read) -> None:
    script = Script(streamed(*chat_events(ANSWER)))
    reading = read(script, temperature=0)
    assert [text for text in reading.texts if text] == ANSWER
    answer = reading.stream.snapshot
    assert (answer.text, answer.finish_reason, answer.id, answer.model) == ("Hello 🦉!", "stop", "chatcmpl-1", "demo")
    assert answer.message == hocket.Message("assistant", "Hello 🦉!")
    assert answer.usage == reading.stream.usage == hocket.Usage(prompt_tokens=3, completion_tokens=3, total_tokens=6)
    assert answer.request_id == reading.stream.request_id == "r-7"
    expected = {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    assert {name: value for name, value in script.bodies[0].items() if name != "messages"} == expected


def test_events_may_be_cut_anywhere(read: Read) -> None:
    body = b"".join(chat_events(ANSWER))
    reading = read(Script(streamed(*(body[i : i + 1] for i in range(len(body))))))
    assert "".join(reading.texts) == "Hello 🦉!"


def test_several_events_in_one_read_are_several_chunks(read: Read) -> None:
    reading = read(Script(streamed(b"".join(chat_events(ANSWER)))))
    assert [text for text in reading.texts if text] == ANSWER


def test_leaving_early_closes_the_connection_and_keeps_what_came(read: Read) -> None:
    body = Pieces(*chat_events(ANSWER))
    reading = read(Script(httpx.Response(200, stream=body)), stop_after=3)
    assert body.is_closed
    assert body.pieces
    assert reading.stream.snapshot.text == "Hello 🦉"
    assert reading.stream.snapshot.finish_reason is None


def test_the_rest_of_the_body_is_read_so_that_the_connection_can_be_reused(read: Read) -> None:
    body = Pieces(*chat_events(ANSWER), b"\n")
    read(Script(httpx.Response(200, stream=body)))
    assert not body.pieces


def test_a_connection_that_breaks_after_the_last_word_has_done_its_work(read: Read) -> None:
    reading = read(Script(streamed(*chat_events(ANSWER), httpx.ReadError("reset"))))
    assert reading.error is None
    assert reading.stream.snapshot.finish_reason == "stop"


def test_an_error_event_is_raised_after_the_chunks_before_it(read: Read) -> None:
    failure = event({"error": {"message": "engine died", "type": "server_error", "code": "engine_dead"}})
    body = Pieces(b"".join([*chat_events(ANSWER)[:2], failure]))
    reading = read(Script(httpx.Response(200, stream=body, headers={"x-request-id": "r-7"})))
    assert reading.texts == ["", "Hel"]
    assert isinstance(reading.error, hocket.StreamError)
    assert (reading.error.message, reading.error.code, reading.error.request_id) == (
        "engine died",
        "engine_dead",
        "r-7",
    )
    assert body.is_closed


def test_an_event_named_error_is_an_error_too(read: Read) -> None:
    reading = read(Script(streamed(b'event: error\ndata: {"message": "engine died"}\n\n')))
    assert isinstance(reading.error, hocket.StreamError)
    assert reading.error.message == "engine died"


def test_a_stream_without_its_last_word_is_not_taken_for_a_whole_one(read: Read) -> None:
    reading = read(Script(streamed(*chat_events(ANSWER)[:-1])))
    assert isinstance(reading.error, hocket.StreamError)
    assert "ended in the middle" in reading.error.message


@pytest.mark.parametrize(
    ("broken", "kind"),
    [
        (httpx.RemoteProtocolError("incomplete"), hocket.APIConnectionError),
        (httpx.ReadTimeout(""), hocket.APITimeoutError),
    ],
)
def test_a_connection_that_breaks_in_the_middle_is_said_so_and_not_retried(
    read: Read, broken: Exception, kind: type[Exception]
) -> None:
    script = Script(streamed(*chat_events(ANSWER)[:2], broken), streamed(*chat_events(ANSWER)))
    reading = read(script)
    assert type(reading.error) is kind
    assert reading.error.__cause__ is broken
    assert reading.texts == ["", "Hel"]
    assert len(script.requests) == 1


def test_what_is_not_a_chunk_is_named(read: Read) -> None:
    reading = read(Script(streamed(event("{oops"))))
    assert isinstance(reading.error, hocket.APIResponseError)
    reading = read(Script(streamed(event({"choices": [{"delta": {"content": 3}}]}))))
    assert "choices.0.delta.content should be str" in str(reading.error)


def test_failures_before_the_first_byte_are_retried(read: Read) -> None:
    script = Script(refusal(503), httpx.ConnectError("refused"), streamed(*chat_events(ANSWER)))
    assert "".join(read(script).texts) == "Hello 🦉!"
    assert len(script.requests) == 3


def test_a_refusal_is_raised_on_entering(read: Read) -> None:
    reading = read(Script(refusal(404, "no such model")))
    assert isinstance(reading.error, hocket.NotFoundError)
    assert reading.error.message == "no such model"
    assert reading.texts == []


def test_choices_are_kept_apart() -> None:
    chunks = [
        {"choices": [{"index": 1, "delta": {"role": "assistant", "content": "B"}}]},
        {"choices": [{"index": 0, "delta": {"content": "A"}, "token_ids": [1]}]},
        {"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": "length", "token_ids": [2, 3]}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "stop"}]},
    ]
    with Client(transport=Script(streamed(*map(event, chunks), event("[DONE]")))) as client:
        stream = client.chat.stream("Hello!", n=2)
        assert [chunk.text for chunk in stream] == ["", "A", "a", ""]
        answer = stream.final()
    assert [(c.index, c.message.content, c.finish_reason, c.token_ids) for c in answer.choices] == [
        (0, "Aa", "length", (1, 2, 3)),
        (1, "B", "stop", None),
    ]
    assert answer.timings.tpot_ms is None


def test_logprobs_add_up() -> None:
    def chunk(token: str) -> dict[str, Any]:
        logprobs = {"content": [{"token": token, "logprob": -1.5, "top_logprobs": []}]}
        return {"choices": [{"index": 0, "delta": {"content": token}, "logprobs": logprobs}]}

    with Client(transport=Script(streamed(event(chunk("a")), event(chunk("b")), event("[DONE]")))) as client:
        choice = client.chat.stream("Hello!", logprobs=True).final().choices[0]
    assert choice.logprobs is not None
    assert [(entry.token, entry.logprob) for entry in choice.logprobs.content] == [("a", -1.5), ("b", -1.5)]


def test_completions_stream_too() -> None:
    def chunk(index: int, text: str, **rest: Any) -> bytes:
        logprobs = {"tokens": [text], "token_logprobs": [-1], "top_logprobs": [{text: -1}], "text_offset": [0]}
        return event({"id": "cmpl-1", "choices": [{"index": index, "text": text, "logprobs": logprobs, **rest}]})

    body = [chunk(0, " two"), chunk(1, " b"), chunk(0, " three", finish_reason="length"), event("[DONE]")]
    script = Script(streamed(*body))
    with Client(transport=script) as client, client.completions.stream(["one", "a"], logprobs=1) as stream:
        assert [chunk.text for chunk in stream] == [" two", "", " three"]
    answer = stream.final()
    assert (answer.text, answer.choices[1].text, answer.finish_reason) == (" two three", " b", "length")
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == (" two", " three")
    assert answer.choices[0].logprobs.top_logprobs == ({" two": -1.0}, {" three": -1.0})
    assert script.bodies[0]["prompt"] == ["one", "a"]


async def test_async_completions_stream_too() -> None:
    body = [event({"id": "c", "choices": [{"index": 0, "text": text}]}) for text in ("a", "b")]
    async with AsyncClient(transport=Script(streamed(*body, event("[DONE]")))) as client:
        assert (await client.completions.stream("x").final()).text == "ab"


def test_a_plain_loop_to_the_end_closes_by_itself() -> None:
    body = Pieces(*chat_events(ANSWER))
    with Client(transport=Script(httpx.Response(200, stream=body))) as client:
        assert "".join(chunk.text for chunk in client.chat.stream("Hello!")) == "Hello 🦉!"
        assert body.is_closed


async def test_a_plain_async_loop_to_the_end_closes_by_itself() -> None:
    body = Pieces(*chat_events(ANSWER))
    async with AsyncClient(transport=Script(httpx.Response(200, stream=body))) as client:
        assert "".join([chunk.text async for chunk in client.chat.stream("Hello!")]) == "Hello 🦉!"
        assert body.is_closed


def test_nothing_is_sent_before_the_block_is_entered() -> None:
    script = Script(chat_answer(""))
    with Client(transport=script) as client:
        stream = client.chat.stream("Hello!")
        assert stream.timings == hocket.Timings()
        stream.close()
        assert list(stream) == []
        with pytest.raises(hocket.StreamError, match="is closed"), stream:
            pass
    assert script.requests == []


def test_final_of_a_stream_that_was_left_early_is_refused() -> None:
    with Client(transport=Script(streamed(*chat_events(ANSWER)))) as client:
        with client.chat.stream("Hello!") as stream:
            next(stream)
        with pytest.raises(hocket.StreamError, match="closed before its end"):
            stream.final()


def test_timings_are_defined_by_the_first_and_the_last_text() -> None:
    now = 10.0
    options = Options("http://server")
    stream = BaseStream(chat_stream("Hello!", {}, options), options, lambda: now)
    role, first, second, third, end, usage, done = chat_events(["a", "b", "c"])
    stream._start()
    for seconds, data in [(0.1, role), (0.5, first), (0.6, second), (0.9, third), (1.0, end + usage), (1.2, done)]:
        now = 10.0 + seconds
        stream._push(data)
        now = 99.0  # the reader takes its time, which is not the server's
        while stream._pull() is not None:
            pass
    timings = stream.snapshot.timings
    assert timings.ttft_ms == pytest.approx(500)
    assert timings.tpot_ms == pytest.approx(200)  # three tokens, two gaps
    assert timings.tokens_per_second == pytest.approx(5)
    assert timings.e2e_ms == pytest.approx(1200)


def test_a_single_token_has_no_gap() -> None:
    with Client(transport=Script(streamed(*chat_events(["a"])))) as client:
        timings = client.chat.stream("Hello!").final().timings
    assert timings.ttft_ms is not None
    assert timings.tpot_ms is None
    assert timings.tokens_per_second is None


def test_an_answer_that_never_began_is_empty() -> None:
    answer = ChatAccumulator().result(None, hocket.Timings())
    assert (answer.text, answer.choices, answer.finish_reason, answer.message) == ("", (), None, hocket.Message())

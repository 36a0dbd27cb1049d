"""What a call sends, and what it makes of the answer; without a socket."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import hocket
from fakes.http_script import Script, chat_answer, refusal, streamed
from hocket import AsyncClient, Client, Message


@pytest.fixture
def naps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The delays between attempts, which are not waited for."""
    delays: list[float] = []

    async def nap(seconds: float) -> None:
        delays.append(seconds)

    monkeypatch.setattr("hocket._connection.time.sleep", delays.append)
    monkeypatch.setattr("hocket._connection.asyncio.sleep", nap)
    return delays


def ask(script: Script, messages: Any = "Hello!", options: Any = None, **params: Any) -> hocket.ChatCompletion:
    with Client("http://server", transport=script, **(options or {})) as client:
        return client.chat.create(messages, **params)


def test_a_string_is_one_user_message() -> None:
    script = Script(chat_answer("Hi."))
    assert ask(script, "Hello!").text == "Hi."
    assert script.bodies == [{"messages": [{"role": "user", "content": "Hello!"}]}]
    assert (script.requests[0].method, str(script.requests[0].url)) == ("POST", "http://server/v1/chat/completions")


def test_an_answer_continues_the_conversation() -> None:
    script = Script(chat_answer("Hi."), chat_answer("Bye."))
    messages: list[Any] = [{"role": "user", "content": "Hello!"}]
    messages += [ask(script, messages).message, Message("user", "Bye!")]
    ask(script, messages)
    assert [(m["role"], m["content"]) for m in script.bodies[1]["messages"]] == [
        ("user", "Hello!"),
        ("assistant", "Hi."),
        ("user", "Bye!"),
    ]


def test_parameters_are_sent_as_given_and_none_means_not_given() -> None:
    script = Script(chat_answer(""))
    ask(script, temperature=0, stop=["a", "b"], logit_bias={5: -1.0}, seed=None, extra_body={"new": True})
    expected = {"temperature": 0, "stop": ["a", "b"], "logit_bias": {"5": -1.0}, "new": True}
    assert {k: v for k, v in script.bodies[0].items() if k != "messages"} == expected


def test_the_clients_model_is_used_by_calls_that_name_none() -> None:
    script = Script(chat_answer(""), chat_answer(""))
    ask(script, options={"model": "demo"})
    ask(script, options={"model": "demo"}, model="other")
    assert [body["model"] for body in script.bodies] == ["demo", "other"]


def test_an_answer_is_typed_and_unknown_fields_are_tolerated() -> None:
    body = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 17,
        "model": "demo",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "4", "refusal": None},
                "finish_reason": "stop",
                "logprobs": {
                    "content": [
                        {"token": "4", "logprob": -1, "bytes": [52], "top_logprobs": [{"token": "4", "logprob": -0.5}]}
                    ]
                },
                "token_ids": [52],
                "future": {},
            }
        ],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 1,
            "total_tokens": 4,
            "prompt_tokens_details": {"cached_tokens": 2},
        },
        "service_tier": "default",
        "timings": {"prompt_ms": 1},
    }
    script = Script(httpx.Response(200, json=body, headers={"x-request-id": "r-7"}))
    answer = ask(script)
    choice = answer.choices[0]
    assert (answer.text, answer.finish_reason, answer.created, answer.service_tier) == ("4", "stop", 17, "default")
    assert answer.usage is not None
    assert (answer.usage.total_tokens, answer.usage.cached_tokens) == (4, 2)
    assert choice.logprobs is not None
    assert choice.logprobs.content[0].logprob == -1.0
    assert choice.logprobs.content[0].top_logprobs == (hocket.TopLogprob(token="4", logprob=-0.5),)
    assert choice.token_ids == (52,)
    assert answer.request_id == "r-7"
    assert answer.timings.e2e_ms > 0
    assert answer.timings.ttft_ms is None


def test_results_are_frozen() -> None:
    answer = ask(Script(chat_answer("Hi.")))
    with pytest.raises(AttributeError):
        answer.id = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"<html>", "not JSON"),
        (b"[]", "the body should be an object"),
        (b"{}", "choices should be present"),
        (b'{"choices": {}}', "choices should be a list"),
        (b'{"choices": [{"message": {"content": 3}}]}', "choices.0.message.content should be str, not '3'"),
    ],
)
def test_what_is_not_an_answer_is_named(body: bytes, complaint: str) -> None:
    with pytest.raises(hocket.APIResponseError, match=complaint):
        ask(Script(httpx.Response(200, content=body)))


def test_completions_take_several_prompts() -> None:
    choices = [
        {"index": 0, "text": " two"},
        {"index": 1, "text": " b", "logprobs": {"tokens": [" b"], "token_logprobs": [None], "top_logprobs": None}},
    ]
    script = Script(httpx.Response(200, json={"id": "cmpl-1", "choices": choices}))
    with Client("http://server", transport=script) as client:
        completion = client.completions.create(["one", "a"], max_tokens=1, logprobs=0)
    assert script.bodies == [{"prompt": ["one", "a"], "max_tokens": 1, "logprobs": 0}]
    assert script.requests[0].url.path == "/v1/completions"
    assert [choice.text for choice in completion.choices] == [" two", " b"]
    assert completion.choices[1].logprobs == hocket.CompletionLogprobs(tokens=(" b",), token_logprobs=(None,))


def test_models_tokens_and_text() -> None:
    script = Script(
        httpx.Response(200, json={"object": "list", "data": [{"id": "demo", "max_model_len": 512}]}),
        httpx.Response(200, json={"count": 2, "max_model_len": 512, "tokens": [7, 8]}),
        httpx.Response(200, json={"count": 1, "max_model_len": 512, "tokens": [7]}),
        httpx.Response(200, json={"prompt": "Hello"}),
    )
    with Client("http://server", transport=script, model="demo") as client:
        assert client.models.list() == (hocket.Model(id="demo", max_model_len=512),)
        assert client.tokenize("Hello", add_special_tokens=False).tokens == (7, 8)
        assert client.tokenize([Message("user", "Hello")]).count == 1
        assert client.detokenize((7, 8)) == "Hello"
    assert [request.url.path for request in script.requests] == ["/v1/models", "/tokenize", "/tokenize", "/detokenize"]
    assert [json.loads(request.content) for request in script.requests[1:]] == [
        {"prompt": "Hello", "model": "demo", "add_special_tokens": False},
        {"messages": [{"role": "user", "content": "Hello"}], "model": "demo"},
        {"tokens": [7, 8], "model": "demo"},
    ]


@pytest.mark.parametrize(
    ("answer", "health"),
    [
        (httpx.Response(200), hocket.Health(is_healthy=True, status="ok")),
        (httpx.Response(200, json=["?"]), hocket.Health(is_healthy=True, status="ok")),
        (httpx.Response(503), hocket.Health(is_healthy=False, status="unavailable")),
        (
            httpx.Response(503, json={"status": "starting"}),
            hocket.Health(is_healthy=False, status="starting", details={"status": "starting"}),
        ),
    ],
)
def test_health_is_an_answer_also_when_it_is_bad(answer: httpx.Response, health: hocket.Health) -> None:
    with Client("http://server", transport=Script(answer)) as client:
        assert client.health() == health


@pytest.mark.parametrize("answer", [httpx.ConnectError("refused"), refusal(404)])
def test_health_of_something_else_is_an_error(answer: Any) -> None:
    with Client("http://server", transport=Script(answer)) as client, pytest.raises(hocket.HocketError):
        client.health()


def test_settings_come_from_the_environment_when_none_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_BASE_URL", "http://elsewhere:9/v1/")
    monkeypatch.setenv("HOCKET_API_KEY", "secret,of-another")
    script = Script(chat_answer(""))
    with Client(transport=script) as client:
        client.chat.create("Hello!")
        assert "secret" not in repr(client)
    assert script.requests[0].url == "http://elsewhere:9/v1/chat/completions"
    assert script.requests[0].headers["authorization"] == "Bearer secret"


def test_settings_that_are_given_win_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOCKET_BASE_URL", "http://elsewhere:9")
    monkeypatch.setenv("HOCKET_API_KEY", "secret")
    script = Script(chat_answer(""))
    ask(script, options={"api_key": "mine", "headers": {"X-Team": "a"}})
    sent = script.requests[0]
    assert (sent.url.host, sent.headers["authorization"], sent.headers["x-team"]) == ("server", "Bearer mine", "a")


def test_without_a_key_none_is_sent() -> None:
    script = Script(chat_answer(""))
    ask(script)
    assert "authorization" not in script.requests[0].headers
    assert script.requests[0].headers["user-agent"].startswith(f"hocket-client/{hocket.__version__}")


def test_the_default_server_is_this_machine() -> None:
    with Client() as client:
        assert repr(client) == "Client('http://127.0.0.1:8000')"


@pytest.mark.parametrize(
    ("options", "complaint"), [({"base_url": "server:8000"}, "base_url"), ({"max_retries": -1}, "max_retries")]
)
def test_settings_that_cannot_work_are_refused_at_once(options: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        Client(**options)


def test_timeouts_are_per_phase() -> None:
    script = Script(chat_answer(""), chat_answer(""), chat_answer(""))
    ask(script)
    ask(script, options={"timeout": hocket.Timeout(30, connect=2)})
    ask(script, options={"timeout": None})
    timeouts = [request.extensions["timeout"] for request in script.requests]
    assert (timeouts[0]["connect"], timeouts[0]["read"]) == (5.0, 600.0)
    assert (timeouts[1]["connect"], timeouts[1]["read"]) == (2, 30)
    assert set(timeouts[2].values()) == {None}


def test_with_options_changes_a_copy_that_shares_the_connections() -> None:
    script = Script(chat_answer(""), refusal(500), chat_answer("still open"))
    with Client("http://server", transport=script, model="demo") as client:
        with client.with_options(model="other", max_retries=0) as other:
            other.chat.create("Hello!")
            with pytest.raises(hocket.ServerError):
                other.chat.create("Hello!")
        assert client.chat.create("Hello!").text == "still open"
    assert [body["model"] for body in script.bodies] == ["other", "other", "demo"]


def test_a_passing_failure_is_retried(naps: list[float]) -> None:
    script = Script(refusal(429, retry_after="3"), httpx.ConnectError("refused"), chat_answer("Hi."))
    assert ask(script).text == "Hi."
    assert 3 <= naps[0] <= 3.75
    assert 0.5 <= naps[1] <= 1
    assert script.bodies[0] == script.bodies[1] == script.bodies[2]


def test_a_body_that_breaks_off_is_retried_too(naps: list[float]) -> None:
    script = Script(streamed(b'{"id"', httpx.RemoteProtocolError("closed")), chat_answer("Hi."))
    assert ask(script).text == "Hi."
    assert len(naps) == 1


def test_the_error_of_the_last_attempt_is_raised(naps: list[float]) -> None:
    with pytest.raises(hocket.RateLimitError) as raised:
        ask(Script(*(refusal(429, retry_after="2") for _ in range(3))))
    assert len(naps) == 2
    assert raised.value.retry_after == 2


async def test_the_async_client_asks_and_retries_alike(naps: list[float]) -> None:
    script = Script(refusal(503), chat_answer("Hi."), httpx.Response(200, json={"id": "c", "choices": [{"text": "x"}]}))
    async with AsyncClient("http://server", transport=script, model="demo") as client:
        assert (await client.chat.create("Hello!")).text == "Hi."
        assert (await client.completions.create("Once", max_tokens=1)).text == "x"
    assert len(naps) == 1
    assert [body["model"] for body in script.bodies] == ["demo"] * 3


async def test_the_async_client_has_the_other_calls_too() -> None:
    script = Script(
        httpx.Response(200, json={"data": [{"id": "demo"}]}),
        httpx.Response(200, json={"count": 1, "tokens": [7]}),
        httpx.Response(200, json={"prompt": "Hello"}),
        httpx.Response(200),
    )
    async with AsyncClient("http://server", transport=script) as client, client.with_options(timeout=1) as other:
        assert [model.id for model in await other.models.list()] == ["demo"]
        assert (await client.tokenize("Hello")).tokens == (7,)
        assert await client.detokenize([7]) == "Hello"
        assert (await client.health()).is_healthy

"""What vLLM's clients ask for beyond OpenAI's parameters, against the whole server."""

from __future__ import annotations

import re
from typing import Any

import openai
import pytest

from fakes.served import Server

KEY = "test-key"
HELLO: list[Any] = [{"role": "user", "content": "Hello, how are you?"}]


@pytest.fixture
def client(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


def test_prompt_logprobs_are_those_of_the_echo(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"model": server.model, "prompt": "Hello there", "max_tokens": 2, "temperature": 0}
    echo = client.completions.create(**asked, echo=True, logprobs=2).choices[0].logprobs
    choice: Any = client.completions.create(**asked, extra_body={"prompt_logprobs": 2}).choices[0]
    assert echo is not None
    assert echo.token_logprobs is not None
    first, *others = choice.prompt_logprobs
    assert first is None
    for entry, logprob, token in zip(others, echo.token_logprobs[1:], (echo.tokens or [])[1:], strict=False):
        own = [of for of in entry.values() if of["logprob"] == pytest.approx(logprob)]
        assert own[0]["decoded_token"] == token
        assert sorted(of["rank"] for of in entry.values())[:2] == [1, 2]


def test_prompt_logprobs_of_a_chat(client: openai.OpenAI, server: Server) -> None:
    answer: Any = client.chat.completions.create(
        model=server.model, messages=HELLO, max_tokens=2, extra_body={"prompt_logprobs": 0}
    )
    assert len(answer.prompt_logprobs) == answer.usage.prompt_tokens
    assert all(len(entry) == 1 for entry in answer.prompt_logprobs[1:])
    with pytest.raises(openai.BadRequestError, match="not with 'stream'"):
        client.chat.completions.create(
            model=server.model, messages=HELLO, stream=True, extra_body={"prompt_logprobs": 0}
        )


@pytest.mark.parametrize("stream", [False, True])
def test_tokens_may_be_shown_as_ids(client: openai.OpenAI, server: Server, stream: bool) -> None:
    extra = {"return_tokens_as_token_ids": True, "return_token_ids": True}
    asked: dict[str, Any] = {"model": server.model, "prompt": "Hello", "max_tokens": 4, "temperature": 0, "logprobs": 1}
    answer: Any = client.completions.create(**asked, extra_body=extra, stream=stream)
    choices = [choice for chunk in answer for choice in chunk.choices] if stream else answer.choices
    tokens = [token for choice in choices if choice.logprobs for token in choice.logprobs.tokens]
    ids = [token_id for choice in choices for token_id in getattr(choice, "token_ids", None) or ()]
    assert tokens == [f"token_id:{token_id}" for token_id in ids]
    assert len(tokens) == 4
    chat: Any = client.chat.completions.create(
        model=server.model, messages=HELLO, max_tokens=3, logprobs=True, top_logprobs=1, extra_body=extra
    )
    shown = [entry.token for entry in chat.choices[0].logprobs.content]
    assert shown == [f"token_id:{token_id}" for token_id in chat.choices[0].token_ids]


def test_a_role_that_the_template_does_not_know_is_its_to_refuse(client: openai.OpenAI, server: Server) -> None:
    messages: Any = [{"role": "observation", "content": "It rains."}, *HELLO]
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=server.model, messages=messages, max_tokens=2)
    assert refused.value.code == "template_error"


def completed(client: openai.OpenAI, server: Server, extra: dict[str, Any], **asked: Any) -> tuple[str, list[int]]:
    """Text and token ids."""
    asked = {"model": server.model, "prompt": "Tell me a story.", "max_tokens": 40, "temperature": 0} | asked
    answer: Any = client.completions.create(**asked, extra_body={"return_token_ids": True} | extra)
    choices = [choice for chunk in answer for choice in chunk.choices] if asked.get("stream") else answer.choices
    return "".join(choice.text for choice in choices), [
        i for choice in choices for i in getattr(choice, "token_ids", None) or ()
    ]


def tokens_of(server: Server, text: str) -> list[int]:
    asked = {"prompt": text, "add_special_tokens": False}
    found: Any = openai.OpenAI(base_url=server.url, api_key=KEY).post("/tokenize", cast_to=object, body=asked)
    return list(found["tokens"])


def holds(tokens: list[int], word: list[int]) -> bool:
    return any(tokens[i : i + len(word)] == word for i in range(len(tokens)))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sampling", [{}, {"temperature": 1.0, "seed": 5}])
def test_bad_words_do_not_come(client: openai.OpenAI, server: Server, stream: bool, sampling: dict[str, Any]) -> None:
    """Each turn forbids a word that has come, so that the text is another one each time, and has none of them."""
    banned: list[str] = []
    for _ in range(4):
        text, ids = completed(
            client,
            server,
            {"bad_words": banned, "ignore_eos": True},
            stream=stream,
            prompt="Once upon a time",
            **sampling,
        )
        spellings = [tokens_of(server, before + word) for word in banned for before in ("", " ")]
        assert not [spelling for spelling in spellings if holds(ids, spelling)]
        banned.append(max(re.findall("[A-Za-z]+", text), key=len))
        assert holds(ids, tokens_of(server, " " + banned[-1])) or holds(ids, tokens_of(server, banned[-1]))


def test_only_allowed_tokens_come(client: openai.OpenAI, server: Server) -> None:
    asked: dict[str, Any] = {"model": server.model, "prompt": "Hello", "max_tokens": 20, "temperature": 1.0, "seed": 3}
    allowed = [70, 71, 72, 300]
    extra = {"allowed_token_ids": allowed, "return_token_ids": True, "logprob_token_ids": [70, 301]}
    answer: Any = client.completions.create(**asked, logprobs=0, extra_body=extra)
    choice = answer.choices[0]
    assert set(choice.token_ids) <= set(allowed)
    assert choice.finish_reason == "length"  # the end of a text is no allowed token either
    assert all(len(top) in (2, 3) for top in choice.logprobs.top_logprobs)
    again: Any = client.completions.create(**asked, extra_body=extra | {"logprob_token_ids": None})
    assert again.choices[0].token_ids == choice.token_ids
    with pytest.raises(openai.BadRequestError, match="leaves no token"):
        client.completions.create(**asked, extra_body={"allowed_token_ids": [70], "bad_words": token_text(server, 70)})


def token_text(server: Server, token: int) -> list[str]:
    asked = {"tokens": [token]}
    found: Any = openai.OpenAI(base_url=server.url, api_key=KEY).post("/detokenize", cast_to=object, body=asked)
    return [found["prompt"]]


def test_a_conflict_that_shows_later_ends_the_request_with_its_reason(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError, match="no token is left"):
        client.completions.create(
            model=server.model,
            prompt="Hello",
            max_tokens=5,
            extra_body={"guided_choice": ["yes"], "bad_words": ["yes", "y", "ye"]},
        )


@pytest.mark.parametrize(("extra", "kept"), [({}, slice(-3, None)), ({"truncation_side": "right"}, slice(0, 3))])
def test_prompts_are_cut(client: openai.OpenAI, server: Server, extra: dict[str, Any], kept: slice) -> None:
    prompt = "One two three four five six seven eight."
    asked: dict[str, Any] = {"model": server.model, "prompt": prompt, "max_tokens": 2, "temperature": 0}
    whole: Any = client.completions.create(**asked, extra_body={"return_token_ids": True})
    extra = {"truncate_prompt_tokens": 3, "return_token_ids": True} | extra
    cut: Any = client.completions.create(**asked, echo=True, extra_body=extra)
    assert cut.choices[0].prompt_token_ids == whole.choices[0].prompt_token_ids[kept]
    assert cut.usage.prompt_tokens == 3
    assert cut.choices[0].text != prompt
    same: Any = client.completions.create(**asked | {"prompt": cut.choices[0].prompt_token_ids}, echo=True)
    assert same.choices[0].text == cut.choices[0].text


def test_what_is_too_long_is_cut_to_what_fits(client: openai.OpenAI, server: Server) -> None:
    long = "word " * 5000
    with pytest.raises(openai.BadRequestError):
        client.completions.create(model=server.model, prompt=long, max_tokens=5)
    answer = client.completions.create(
        model=server.model, prompt=long, max_tokens=5, extra_body={"truncate_prompt_tokens": -1}
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    length = client.models.list().data[0].max_model_len  # type: ignore[attr-defined]
    assert answer.usage.prompt_tokens == length - 5

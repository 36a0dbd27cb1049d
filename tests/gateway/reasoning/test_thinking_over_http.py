"""Thinking over HTTP: kept out of what is said, on every route that chats, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from fakes.byte_tokenizer import END, SPECIAL_TOKENS, byte_tokenizer, write_byte_checkpoint
from fakes.fake_engine import FakeEngine, saying
from fakes.sse_reader import parse_events
from gateway.model.checkpoint import Checkpoint
from schedcore.api.types import EngineRequest

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
HELLO = [{"role": "user", "content": "Hello"}]
TEMPLATE = (  # as Qwen3's: it opens nothing, and closes where thinking is switched off
    "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>"
    "{% endif %}{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{{ '<think>\n' if opens_thinking is defined else '' }}{% endif %}"
)
TEXT = "<think>\nI think so.\n</think>\n\nYes."
NUM_THINKING = len("<think>\nI think so.\n</think>")
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = '[{"name": "weather", "arguments": {"city": "Rome"}}]'


@pytest.fixture
def thinker(tmp_path: Path) -> Checkpoint:
    return Checkpoint.read(write_byte_checkpoint(tmp_path / "thinker", TEMPLATE))


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO} | fields


async def told(client: Any, body: dict[str, Any]) -> list[tuple[str, str]]:
    """(thinking, content) of each choice, which a stream tells the same."""
    response = await client.post(CHAT, json=body)
    assert response.status == 200, await response.text()
    choices = (await response.json())["choices"]
    assert all(c["message"].get("reasoning") == c["message"].get("reasoning_content") for c in choices)
    whole = [(c["message"].get("reasoning_content", ""), c["message"]["content"] or "") for c in choices]
    response = await client.post(CHAT, json=body | {"stream": True})
    pieces = [["", ""] for _ in whole]
    for event in parse_events(await response.text()):
        for choice in event["choices"] if event != "[DONE]" else ():
            assert choice["delta"].get("reasoning") == choice["delta"].get("reasoning_content")
            pieces[choice["index"]][0] += choice["delta"].get("reasoning_content", "")
            pieces[choice["index"]][1] += choice["delta"].get("content", "")
    assert [tuple(parts) for parts in pieces] == whole
    return whole


@pytest.mark.parametrize(
    ("fields", "text", "thinking", "content"),
    [
        ({}, TEXT, "I think so.", "Yes."),
        ({"logprobs": True, "return_token_ids": True}, TEXT, "I think so.", "Yes."),
        ({}, "Yes.", "", "Yes."),
        ({"chat_template_kwargs": {"enable_thinking": False}}, "Yes.</think>", "", "Yes.</think>"),
        ({"reasoning_effort": "none"}, TEXT, "", TEXT),
        ({"chat_template_kwargs": {"opens_thinking": True}}, "I think so.\n</think>\n\nYes.", "I think so.", "Yes."),
        ({"chat_template_kwargs": {"opens_thinking": True}}, "I think and", "I think and", ""),
        ({"include_reasoning": False}, TEXT, "", "Yes."),
        ({"stop": "so"}, TEXT, "I think", ""),
        ({"stop": "s."}, TEXT, "I think so.", "Ye"),
        ({"max_tokens": 12}, TEXT, "I th", ""),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "<think>I"}], "continue_final_message": True},
            " do.</think>Yes.",
            "do.",
            "Yes.",
        ),
        (
            {"messages": [*HELLO, {"role": "assistant", "content": "Well,"}], "continue_final_message": True},
            " <think> is a tag.",
            "",
            " <think> is a tag.",
        ),
    ],
)
async def test_thinking_of_a_chat(
    serve: Any, thinker: Checkpoint, fields: dict[str, Any], text: str, thinking: str, content: str
) -> None:
    client = await serve(FakeEngine(saying(text)), checkpoint=thinker)
    assert await told(client, chat(n=2) | fields) == [(thinking, content)] * 2


async def test_tokens_of_thinking_are_counted(serve: Any, thinker: Checkpoint) -> None:
    client = await serve(FakeEngine(saying(TEXT)), checkpoint=thinker)
    for stream in (False, True):
        asked = chat(n=2, stream=stream, stream_options={"include_usage": True} if stream else None)
        text = await (await client.post(CHAT, json=asked)).text()
        usage = parse_events(text)[-2]["usage"] if stream else json.loads(text)["usage"]
        assert usage["completion_tokens_details"] == {"reasoning_tokens": 2 * NUM_THINKING}
        assert usage["completion_tokens"] == 2 * (len(TEXT) + 1)
    response = await (await client.post(RESPONSES, json={"input": "Hello"})).json()
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == NUM_THINKING


async def test_a_model_that_does_not_think_says_everything(serve: Any) -> None:
    body = await (await (await serve(FakeEngine(saying(TEXT)))).post(CHAT, json=chat())).json()
    assert body["choices"][0]["message"]["content"] == TEXT
    assert "completion_tokens_details" not in body["usage"]


async def test_parsers_are_chosen(serve: Any, thinker: Checkpoint) -> None:
    plain = await serve(FakeEngine(saying(TEXT)), checkpoint=thinker, reasoning_parser="none")
    assert await told(plain, chat()) == [("", TEXT)]
    implicit = await serve(FakeEngine(saying("Hm.</think>Yes.")), reasoning_parser="deepseek_r1")
    assert await told(implicit, chat()) == [("Hm.", "Yes.")]


async def test_calls_come_after_thinking(serve: Any, thinker: Checkpoint) -> None:
    text = f"<think>Not {CALL} yet.</think>\n{CALL}"
    client = await serve(FakeEngine(saying(text)), checkpoint=thinker)
    choice = (await (await client.post(CHAT, json=chat(tools=[WEATHER]))).json())["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["reasoning_content"] == f"Not {CALL} yet."
    assert choice["message"]["content"] is None
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert await told(client, chat(tools=[WEATHER])) == [(f"Not {CALL} yet.", "")]


async def test_what_the_engine_is_asked_for_a_form(serve: Any, thinker: Checkpoint) -> None:
    asked: list[EngineRequest] = []

    def script(request: EngineRequest) -> Any:
        asked.append(request)
        return saying("Hi.")(request)

    client = await serve(FakeEngine(script), checkpoint=thinker)
    for fields in ({}, {"chat_template_kwargs": {"enable_thinking": False}}):
        body = chat(response_format={"type": "json_object"}, **fields)
        assert (await client.post(CHAT, json=body)).status == 200
    before = [request.grammar.before for request in asked if request.grammar]
    assert "</think>" in before[0]
    assert before[1] == ""


async def test_responses_with_thinking(serve: Any, thinker: Checkpoint) -> None:
    client = await serve(FakeEngine(saying(TEXT)), checkpoint=thinker)
    async with openai.AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="-") as sdk:
        whole = await sdk.responses.create(model="demo", input="Hello")
        assert [item.type for item in whole.output] == ["reasoning", "message"]
        assert whole.output_text == "Yes."
        assert whole.output[0].content[0].text == "I think so."  # type: ignore[union-attr, index]
        events = [event async for event in await sdk.responses.create(model="demo", input="Hello", stream=True)]
        kinds = [event.type for event in events]
        assert kinds.index("response.reasoning_text.done") < kinds.index("response.output_text.delta")
        thought = "".join(e.delta for e in events if e.type == "response.reasoning_text.delta")
        assert thought == "I think so."
        last = events[-1].response  # type: ignore[union-attr]
        assert [item.type for item in last.output] == ["reasoning", "message"]
        indices = {e.output_index for e in events if e.type == "response.output_text.delta"}
        assert indices == {1}
        again = await sdk.responses.create(model="demo", input=[*last.output, {"role": "user", "content": "Go on"}])
        assert again.status == "completed"


@pytest.mark.parametrize(("tokens", "kinds"), [(12, ["reasoning"]), (40, ["reasoning", "message"])])
async def test_a_response_that_is_cut(serve: Any, thinker: Checkpoint, tokens: int, kinds: list[str]) -> None:
    long = FakeEngine(saying(TEXT + " " + "word " * 10))
    client = await serve(long, checkpoint=thinker)
    body = {"input": "Hello", "max_output_tokens": tokens}
    whole = await (await client.post(RESPONSES, json=body)).json()
    text = await (await client.post(RESPONSES, json=body | {"stream": True})).text()
    streamed = json.loads(text.rsplit("data: ", 1)[1])["response"]
    for response in (whole, streamed):
        assert response["status"] == "incomplete"
        assert [item["type"] for item in response["output"]] == kinds
        assert response["output"][-1]["status"] == "incomplete"


async def test_messages_with_thinking(serve: Any, thinker: Checkpoint) -> None:
    client = await serve(FakeEngine(saying(TEXT)), checkpoint=thinker)
    async with anthropic.AsyncAnthropic(base_url=str(client.make_url("/")), api_key="-") as sdk:
        ask: Any = {"model": "demo", "max_tokens": 100, "messages": HELLO}
        whole = await sdk.messages.create(**ask)
        assert [block.type for block in whole.content] == ["thinking", "text"]
        async with sdk.messages.stream(**ask, thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
            final = await stream.get_final_message()
        assert [block.type for block in final.content] == ["thinking", "text"]
        assert final.content[0].thinking == "I think so."  # type: ignore[union-attr]
        assert final.content[1].text == "Yes."  # type: ignore[union-attr]
        ask["messages"] = [*HELLO, {"role": "assistant", "content": final.content}, *HELLO]
        assert (await sdk.messages.create(**ask, thinking={"type": "disabled"})).content[0].type == "text"


async def test_earlier_thinking_reaches_the_template(serve: Any, thinker: Checkpoint) -> None:
    prompts: list[str] = []

    def script(request: EngineRequest) -> Any:
        prompts.append(bytes(token for token in request.prompt_token_ids if token < END).decode())
        return saying("Hi.")(request)

    client = await serve(FakeEngine(script), checkpoint=thinker)
    answer = {"role": "assistant", "content": "Yes."}
    said = [*HELLO, answer | {"reasoning_content": "Hm."}, *HELLO]
    await client.post(CHAT, json=chat(messages=said))
    await client.post(CHAT, json=chat(messages=[*HELLO, answer | {"reasoning": "Hm."}, *HELLO]))
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes."}]
    said = [*HELLO, {"role": "assistant", "content": blocks}, *HELLO]
    await client.post(MESSAGES, json={"messages": said, "max_tokens": 9})
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    await client.post(RESPONSES, json={"input": [*HELLO, thought, answer, *HELLO]})
    assert prompts == ["Hello<think>Hm.</think>Yes.Hello"] * 4


@pytest.mark.parametrize("is_special", [True, False])
async def test_marks_that_are_tokens(serve: Any, tmp_path: Path, is_special: bool) -> None:
    folder = write_byte_checkpoint(tmp_path / "marked", TEMPLATE)
    tokenizer = byte_tokenizer()
    (tokenizer.add_special_tokens if is_special else tokenizer.add_tokens)(["<think>", "</think>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    opening = END + len(SPECIAL_TOKENS)

    def script(request: EngineRequest) -> list[int]:
        return [opening, *b"Hm.", opening + 1, *b"Yes.", END]

    client = await serve(FakeEngine(script), checkpoint=Checkpoint.read(folder))
    assert await told(client, chat()) == [("Hm.", "Yes.")]
    body = await (await client.post(CHAT, json=chat())).json()
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5

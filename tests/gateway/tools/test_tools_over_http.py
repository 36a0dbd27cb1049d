"""Tools over HTTP: what the engine is asked, and how its texts become calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fakes.byte_tokenizer import write_byte_checkpoint
from fakes.fake_engine import FakeEngine, saying
from fakes.sse_reader import parse_events
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint
from gateway.model.served_model import ServedModel
from gateway.protocol.chat import decode_chat

CHAT = "/v1/chat/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALLS = (
    '[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "get_weather", "arguments": {"city": "Rome"}}]'
)
HELLO = [{"role": "user", "content": "Hello"}]
HERMES_TEMPLATE = (
    "{% if tools %}<|system|>{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function.arguments.city }}</tool_call>{% endfor %}"
    "{% endfor %}"
)


def body(**fields: Any) -> dict[str, Any]:
    return {"messages": HELLO, "tools": [WEATHER]} | fields


async def test_calls_in_an_answer(serve: Any) -> None:
    response = await (await serve(FakeEngine(saying(CALLS)))).post(CHAT, json=body())
    choice = (await response.json())["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    calls = choice["message"]["tool_calls"]
    assert [json.loads(call["function"]["arguments"])["city"] for call in calls] == ["Paris", "Rome"]
    assert {call["type"] for call in calls} == {"function"}
    assert len({call["id"] for call in calls}) == 2


@pytest.mark.parametrize("extra", [{}, {"logprobs": True, "return_token_ids": True}])
async def test_calls_in_a_stream(serve: Any, extra: dict[str, Any]) -> None:
    client = await serve(FakeEngine(saying(CALLS)))
    response = await client.post(CHAT, json=body(stream=True, stream_options={"include_usage": True}) | extra)
    chunks = [event for event in parse_events(await response.text()) if event != "[DONE]"]
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    pieces = [call for delta in deltas for call in delta.get("tool_calls", ())]
    heads = [call for call in pieces if "id" in call]
    assert [(call["index"], call["function"]["name"]) for call in heads] == [(0, "get_weather"), (1, "get_weather")]
    arguments = ["".join(call["function"]["arguments"] for call in pieces if call["index"] == i) for i in (0, 1)]
    assert [json.loads(text)["city"] for text in arguments] == ["Paris", "Rome"]
    assert len([call for call in pieces if call["index"] == 0]) > 3  # as they are written
    assert [c["finish_reason"] for chunk in chunks for c in chunk["choices"] if c["finish_reason"]] == ["tool_calls"]
    assert "".join(delta.get("content", "") for delta in deltas) == ""
    if extra:
        assert sum(len(c["token_ids"]) for chunk in chunks for c in chunk["choices"] if "token_ids" in c) >= len(CALLS)


async def test_one_call_where_they_may_not_be_parallel(serve: Any) -> None:
    response = await (await serve(FakeEngine(saying(CALLS)))).post(CHAT, json=body(parallel_tool_calls=False))
    assert len((await response.json())["choices"][0]["message"]["tool_calls"]) == 1


@pytest.mark.parametrize("text", ["Sunny.", '{"name": "Ann"}', CALLS])
async def test_text_stays_text(serve: Any, text: str) -> None:
    asked = body(tool_choice="none") if text == CALLS else body()
    for stream in (False, True):
        response = await (await serve(FakeEngine(saying(text)))).post(CHAT, json=asked | {"stream": stream})
        if not stream:
            choice = (await response.json())["choices"][0]
            assert choice["message"]["content"] == text
            assert "tool_calls" not in choice["message"]
            assert choice["finish_reason"] == "stop"
        else:
            chunks = [event for event in parse_events(await response.text()) if event != "[DONE]"]
            assert "".join(c["delta"].get("content", "") for chunk in chunks for c in chunk["choices"]) == text


@pytest.mark.parametrize(
    ("fields", "has_grammar"),
    [
        ({}, False),
        ({"tool_choice": "none"}, False),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "get_weather"}}}, True),
        ({"tools": [{"function": WEATHER["function"] | {"strict": True}}]}, True),  # type: ignore[operator]
        ({"response_format": {"type": "json_object"}}, True),
    ],
)
async def test_what_the_engine_is_asked(serve: Any, fields: dict[str, Any], has_grammar: bool) -> None:
    asked = []

    def script(request: Any) -> Any:
        asked.append(request.grammar)
        return saying("Hi.")(request)

    assert (await (await serve(FakeEngine(script))).post(CHAT, json=body(**fields))).status == 200
    assert [grammar is not None for grammar in asked] == [has_grammar]


async def test_a_form_that_leaves_no_room_for_calls_is_refused(serve: Any) -> None:
    client = await serve(FakeEngine())
    response = await client.post(CHAT, json=body(guided_regex="a+"))
    assert response.status == 400
    assert (await response.json())["error"]["param"] == "guided_regex"
    assert (await client.post(CHAT, json=body(guided_regex="a+", tool_choice="none"))).status == 200


def chat(**fields: Any) -> Any:
    return decode_chat(json.dumps(body(**fields)).encode())


HISTORY = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "Sunny"},
]


def test_templates_get_tools_and_arguments_as_objects() -> None:
    text = ChatTemplate(HERMES_TEMPLATE, {}).render(chat(messages=HISTORY))
    assert json.dumps(WEATHER) in text
    assert "<tool_call>Paris</tool_call>" in text
    assert "<|tool|>Sunny" in text
    assert "get_weather" not in ChatTemplate(HERMES_TEMPLATE, {}).render(chat(tool_choice="none"))


def test_a_template_without_tools_is_told_in_plain_words() -> None:
    plain = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}", {})
    text = plain.render(chat(messages=HISTORY))
    assert text.startswith("<|system|>You can call functions.")
    assert '"name": "get_weather", "description": "The weather."' in text
    assert '<|assistant|>[{"name": "get_weather", "arguments": {"city": "Paris"}}]' in text
    assert text.endswith("<|user|>Result of get_weather: Sunny")
    assert "You can call" not in plain.render(chat(tool_choice="none"))


@pytest.mark.parametrize(
    ("template", "name"),
    [
        (HERMES_TEMPLATE, "hermes"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<|python_tag|>", "llama3_json"),
        ("{{ tools }}", "json"),
        ("no tools <tool_call>", "json"),
        ("{{ tools }}<tool_call><function=f>", None),
        ("{{ tools }}<tool_call>\n<function=f>\n<parameter=a>", "qwen3_coder"),
        ("{{ tools }}<seed:tool_call><function=f><parameter=a>", "seed_oss"),
        ("{{ tools }}<tool_call>{{ f }}\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>", "glm45"),
        ("{{ tools }}<tool_call>{{ f }}<arg_key>k</arg_key><arg_value>v</arg_value>", "glm47"),
        ("{{ tools }}<minimax:tool_call><invoke name=f><parameter name=a>", "minimax_m2"),
        ("{{ tools }}<｜tool▁calls▁begin｜>f\n```json\n{}", "deepseek_v3"),
        ("{{ tools }}<｜tool▁calls▁begin｜>f<｜tool▁sep｜>{}", "deepseek_v31"),
        ("{{ tools }}<｜DSML｜function_calls>", "deepseek_v32"),
    ],
)
def test_the_format_is_that_of_the_template(tmp_path: Path, template: str, name: str | None) -> None:
    checkpoint = Checkpoint.read(write_byte_checkpoint(tmp_path / "bytes", template))
    found = ServedModel.load(checkpoint, ("bytes",)).tool_format
    assert (None if found is None else found.name) == name
    if "{{" in template:
        told = ServedModel.load(checkpoint, ("bytes",), "mistral").tool_format
        assert told is not None
        assert told.name == "mistral"

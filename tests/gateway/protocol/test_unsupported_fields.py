"""Fields that ask for what this server cannot do: which values are refused, and which ask for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from fakes.fake_engine import FakeEngine

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]})
TEXT = ("/v1/completions", {"prompt": "Hello"})
BOTH = (CHAT, TEXT)

# field -> routes, values that ask for nothing, values that ask for something
FIELDS: dict[str, tuple[tuple[Any, ...], list[Any], list[Any]]] = {
    "tools": ((CHAT,), [None, [], [{"type": "function", "function": {"name": "f"}}]], [{}, ""]),
    "tool_choice": ((CHAT,), [None, "none", "auto"], ["required", "", False]),
    "parallel_tool_calls": ((CHAT,), [None, False, True], [""]),
    "functions": ((CHAT,), [None, []], [[{"name": "f"}]]),
    "function_call": ((CHAT,), [None, "none", "auto"], [{"name": "f"}]),
    "audio": ((CHAT,), [None], [{}, {"voice": "alloy", "format": "mp3"}]),
    "modalities": ((CHAT,), [None, ["text"]], [[], ["text", "audio"]]),
    "web_search_options": ((CHAT,), [None], [{}, {"search_context_size": "low"}]),
    "documents": ((CHAT,), [None, []], [[{"text": "a"}]]),
    "chat_template": ((CHAT,), [None], ["", "{{ messages }}"]),
    "suffix": ((TEXT,), [None, ""], ["the end"]),
    "prompt_embeds": ((TEXT,), [None, []], ["", "AAAA"]),
    "best_of": (BOTH, [None, 1], [0, 2]),
    "use_beam_search": (BOTH, [None, False], [True]),
    "allowed_token_ids": (BOTH, [None, [1]], [[], [-1], [10**6], 5]),
    "bad_words": (BOTH, [None, [], ["a"]], [[""], "a", [5]]),
    "guided_json": (BOTH, [None, {}, "{}"], ["", False, {"type": "frob"}]),
    "guided_regex": (BOTH, [None, "a+"], ["(", 5]),
    "guided_choice": (BOTH, [None, ["a"]], [[]]),
    "guided_grammar": (BOTH, [None, 'root ::= "a"', 'start: "a"'], ["", "root ::= a"]),
    "structured_outputs": (BOTH, [None, {"json": {}}, {"json_object": True}], [{}, {"json": {}, "regex": "a"}]),
    "logits_processors": (BOTH, [None, []], [["f"]]),
    "prompt_logprobs": (BOTH, [None, False, 0, 1], [True, 21, -1]),
    "logprob_token_ids": (BOTH, [None, []], [[1]]),  # without logprobs
    "truncation_side": (BOTH, [None, "left", "right"], ["middle"]),
    "spaces_between_special_tokens": (BOTH, [None, True], [False]),
    "thinking_token_budget": (BOTH, [None], [5]),
    "repetition_detection": (BOTH, [None], [{"max_pattern_size": 3}]),
    "kv_transfer_params": (BOTH, [None, {}], [{"a": 1}]),
    "ec_transfer_params": (BOTH, [None, {}], [{"a": 1}]),
    "vllm_xargs": (BOTH, [None, {}], [{"a": 1}]),
    "return_prompt_text": ((CHAT,), [None, False], [True]),
    "return_token_offsets": (BOTH, [None, False], [True]),
    "detokenize": (BOTH, [None, True], [False]),
    "length_penalty": (BOTH, [None, 1, 1.0], [0.5]),
    "echo": ((CHAT,), [None, False], [True]),
    "include_reasoning": ((CHAT,), [None, True, False], [0]),
    "truncate_prompt_tokens": (BOTH, [None, False, 10, -1], [0, -2, True]),
    "response_format": (BOTH, [None, {"type": "text"}, {"type": "json_object"}], [False]),
}
CASES = [
    (route, name, value, is_refused)
    for name, (routes, off, asked) in FIELDS.items()
    for route in routes
    for values, is_refused in ((off, False), (asked, True))
    for value in values
]


@pytest.mark.parametrize(("route", "name", "value", "is_refused"), CASES)
async def test_field(serve: Any, route: tuple[str, dict[str, Any]], name: str, value: Any, is_refused: bool) -> None:
    path, body = route
    response = await (await serve(FakeEngine())).post(path, json=body | {name: value})
    assert response.status == (400 if is_refused else 200), await response.text()
    if is_refused:
        assert (await response.json())["error"]["param"].partition("[")[0] == name


@pytest.mark.parametrize(
    "name", ["bos_token", "eos_token", "messages", "tools", "add_generation_prompt", "chat_template"]
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
async def test_what_the_server_gives_to_templates_cannot_be_replaced(serve: Any, path: str, name: str) -> None:
    body = CHAT[1] | {"chat_template_kwargs": {"enable_thinking": False, name: "<|evil|>"}}
    response = await (await serve(FakeEngine())).post(path, json=body)
    assert response.status == 400
    assert (await response.json())["error"]["param"] == f"chat_template_kwargs.{name}"


async def test_other_variables_reach_templates(serve: Any) -> None:
    body = CHAT[1] | {"chat_template_kwargs": {"enable_thinking": False}}
    assert (await (await serve(FakeEngine())).post(CHAT[0], json=body)).status == 200

"""Requests that a server must refuse: for the gateway alone, and for the whole server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO = [{"role": "user", "content": "Hello"}]
IMAGE = {"type": "image_url", "image_url": {"url": "http://a/b.png"}}
LONG = "a b " * 100_000


@dataclass(frozen=True)
class BadRequest:
    name: str
    path: str
    body: bytes
    status: int = 400
    param: str | None = None
    code: str | None = None
    content_type: str = "application/json"
    method: str = "POST"


def chat(name: str, param: str | None, status: int = 400, code: str | None = None, **fields: Any) -> BadRequest:
    return BadRequest(name, CHAT, json.dumps({"messages": HELLO} | fields).encode(), status, param, code)


def completion(name: str, param: str | None, status: int = 400, code: str | None = None, **fields: Any) -> BadRequest:
    return BadRequest(name, COMPLETIONS, json.dumps({"prompt": "Hello"} | fields).encode(), status, param, code)


BAD_REQUESTS = [
    BadRequest("empty body", CHAT, b"", code="invalid_json"),
    BadRequest("truncated JSON", CHAT, b'{"messages": [', code="invalid_json"),
    BadRequest("text after JSON", CHAT, b'{"messages": [{"role": "user", "content": "a"}]} x', code="invalid_json"),
    BadRequest("broken UTF-8", CHAT, b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', code="invalid_json"),
    BadRequest("lone surrogate", COMPLETIONS, b'{"prompt": "\\ud800"}', code="invalid_json"),
    BadRequest("UTF-16", CHAT, '{"prompt": "a"}'.encode("utf-16"), code="invalid_json"),
    BadRequest("bottomless nesting", CHAT, b'{"functions": ' + b"[" * 100_000, code="invalid_json"),
    BadRequest("not an object", CHAT, b"[1, 2]", code="invalid_type"),
    BadRequest("form instead of JSON", CHAT, b"a=b", 415, content_type="application/x-www-form-urlencoded"),
    BadRequest("plain text instead of JSON", CHAT, b'{"messages": []}', 415, content_type="text/plain"),
    BadRequest("wrong method", CHAT, b"", 405, method="GET"),
    BadRequest("unknown path", "/v1/nothing", b"{}", 404),
    chat("unknown model", "model", 404, "model_not_found", model="gpt-5"),
    chat("model of the wrong type", "model", model=3),
    chat("no messages", "messages", messages=[]),
    chat("messages of the wrong type", "messages", messages="Hello"),
    chat("message without role", "messages[0].role", messages=[{"content": "a"}]),
    chat("no role", "messages[0].role", messages=[{"role": "", "content": "a"}]),
    chat("message without content", "messages[1].content", messages=[*HELLO, {"role": "user"}]),
    chat("content of the wrong type", "messages[0].content", messages=[{"role": "user", "content": 5}]),
    chat("image", "messages[0].content[0].type", messages=[{"role": "user", "content": [IMAGE]}]),
    chat("empty part", "messages[0].content[0].text", messages=[{"role": "user", "content": [{"type": "text"}]}]),
    chat("negative max_tokens", "max_tokens", max_tokens=-1),
    chat("no tokens at all", "max_tokens", max_tokens=0),
    chat("max_tokens as text", "max_tokens", max_tokens="many"),
    chat("max_tokens beyond the context", "max_completion_tokens", max_completion_tokens=10_000_000),
    chat("astronomical max_tokens", "max_tokens", max_tokens=10**30),
    chat("fractional max_tokens", "max_tokens", max_tokens=1.5),
    chat("huge n", "n", n=1_000_000),
    chat("no choices", "n", n=0),
    chat("temperature too high", "temperature", temperature=2.5),
    chat("negative temperature", "temperature", temperature=-0.1),
    chat("top_p of zero", "top_p", top_p=0),
    chat("penalty out of range", "presence_penalty", presence_penalty=3),
    chat("top_logprobs without logprobs", "top_logprobs", top_logprobs=3),
    chat("too many top_logprobs", "top_logprobs", logprobs=True, top_logprobs=21),
    chat("logit_bias of no token", "logit_bias", logit_bias={"abc": 1}),
    chat("logit_bias of an unknown token", "logit_bias", logit_bias={"99999999": 1}),
    chat("logit_bias out of range", "logit_bias[...]", logit_bias={"5": 101}),
    chat("empty stop string", "stop[0]", stop=[""]),
    chat("too many stop strings", "stop", stop=["a"] * 17),
    chat("stop of the wrong type", "stop", stop=5),
    chat("unknown stop token", "stop_token_ids", stop_token_ids=[99_999_999]),
    chat("more min_tokens than max_tokens", "min_tokens", min_tokens=10, max_tokens=5),
    chat("stream of the wrong type", "stream", stream="yes"),
    chat("stream_options without stream", "stream_options", stream_options={"include_usage": True}),
    chat("unknown service tier", "service_tier", service_tier="gold"),
    chat("seed too large", "seed", seed=2**63),
    chat("tool without a function", "tools[0].function", tools=[{"type": "function"}]),
    chat("tool that is none", "tools[0].type", tools=[{"type": "web_search", "function": {"name": "f"}}]),
    chat("tool with a strange name", "tools[0].function.name", tools=[{"function": {"name": "a b"}}]),
    chat("one name twice", "tools", tools=[{"function": {"name": "f"}}] * 2),
    chat("forced call without tools", "tool_choice", tool_choice="required"),
    chat(
        "forced call of another",
        "tool_choice.function.name",
        tools=[{"function": {"name": "f"}}],
        tool_choice={"type": "function", "function": {"name": "g"}},
    ),
    chat(
        "tool with an unsupported schema",
        "tools",
        code="invalid_grammar",
        tools=[{"function": {"name": "f", "parameters": {"uniqueItems": True}}}],
        tool_choice="required",
    ),
    chat("JSON schema without one", "response_format.json_schema", response_format={"type": "json_schema"}),
    chat("unknown response format", "response_format.type", response_format={"type": "xml"}),
    chat("audio", "audio", audio={"voice": "alloy", "format": "mp3"}),
    chat("spoken answer", "modalities", modalities=["text", "audio"]),
    chat("malformed regex", "guided_regex", code="invalid_grammar", guided_regex="(a"),
    completion("unsupported keyword", "guided_json", code="invalid_grammar", guided_json={"uniqueItems": True}),
    completion("two grammars", "guided_choice", guided_regex="a", guided_choice=["a"]),
    chat("over-long chat", "messages", 400, "context_length_exceeded", messages=[{"role": "user", "content": LONG}]),
    completion("over-long prompt", "prompt", 400, "context_length_exceeded", prompt=LONG),
    BadRequest("no prompt", COMPLETIONS, b"{}", param="prompt", code="missing_parameter"),
    completion("prompt of the wrong type", "prompt", prompt=5),
    completion("no prompts", "prompt", prompt=[]),
    completion("empty token list", "prompt", prompt=[[]]),
    completion("mixed prompts", "prompt[1]", prompt=["a", [1]]),
    completion("mixed tokens and text", "prompt[1]", prompt=[1, "a"]),
    completion("negative token", "prompt[0]", prompt=[-1]),
    completion("unknown token", "prompt", prompt=[99_999_999]),
    completion("too many prompts", "prompt", prompt=["a"] * 1025),
    completion("too many choices", "prompt", prompt=["a"] * 100, n=100),
    completion("suffix", "suffix", suffix="the end"),
    completion("best_of more than n", "best_of", best_of=3),
    completion("too many logprobs", "logprobs", logprobs=21),
    completion("beam search", "use_beam_search", use_beam_search=True),
    BadRequest("tokenize nothing", "/tokenize", b"{}", param="prompt"),
    BadRequest("detokenize text", "/detokenize", b'{"tokens": ["a"]}', param="tokens[0]"),
    BadRequest("detokenize an unknown token", "/detokenize", b'{"tokens": [99999999]}', param="tokens[0]"),
]


def check_error(error: dict[str, Any], bad: BadRequest) -> None:
    """The body is OpenAI's error, and names the parameter."""
    assert set(error) == {"error"}
    assert set(error["error"]) == {"message", "type", "param", "code"}
    assert error["error"]["message"]
    assert error["error"]["type"] == "invalid_request_error"
    assert error["error"]["param"] == bad.param
    if bad.code is not None:
        assert error["error"]["code"] == bad.code

"""What tools/compare_checkouts.py asks a server: every route, what is refused among it, in an order that sessions,
files and batches have sense in.

`<NAME>` in a path or a body stands for the id of an earlier answer that was kept under that name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from fakes.bad_requests import BAD_REQUESTS, CHAT, COMPLETIONS, HELLO  # noqa: E402

RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
KEY, OTHER_KEY = "key-one", "key-two"
SECRET = "whsec_" + "A" * 32  # base64 of 24 bytes
_BOUNDARY = "compared-compared"


@dataclass(frozen=True)
class Asked:
    """One request."""

    name: str
    path: str
    body: bytes | None = None
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)
    keep: str = ""  # name under which the answer's ids are known to later requests
    is_awaited: bool = False  # asked again until what it is about has ended
    is_signed: bool = False  # as a Standard Webhook


@dataclass(frozen=True)
class Served:
    """One server and what it is asked. `$` in an option is the server's own empty folder."""

    name: str
    options: tuple[str, ...]
    asked: Sequence[Asked]


def get(name: str, path: str, **more: Any) -> Asked:
    return Asked(name, path, None, "GET", **more)


def post(name: str, path: str, fields: Any, *, headers: dict[str, str] | None = None, **more: Any) -> Asked:
    headers = {"Content-Type": "application/json"} | (headers or {})
    return Asked(name, path, json.dumps(fields).encode(), "POST", headers, **more)


def chat(name: str, **fields: Any) -> Asked:
    return post(f"chat: {name}", CHAT, {"messages": HELLO, "max_tokens": 12, "temperature": 0} | fields)


def completion(name: str, **fields: Any) -> Asked:
    return post(f"completion: {name}", COMPLETIONS, {"prompt": "Once", "max_tokens": 12, "temperature": 0} | fields)


def upload(name: str, content: bytes | None, *, keep: str = "", filename: str = "r.jsonl", **fields: str) -> Asked:
    parts = [f'Content-Disposition: form-data; name="{key}"\r\n\r\n{value}'.encode() for key, value in fields.items()]
    if content is not None:
        head = f'Content-Disposition: form-data; name="file"; filename="{filename}"\r\n\r\n'
        parts.append(head.encode() + content)
    mark = f"--{_BOUNDARY}".encode()
    body = b"".join(mark + b"\r\n" + part + b"\r\n" for part in parts) + mark + b"--\r\n"
    headers = {"Content-Type": f"multipart/form-data; boundary={_BOUNDARY}"}
    return Asked(f"upload: {name}", "/v1/files", body, "POST", headers, keep)


def line(custom_id: str, url: str = CHAT, **fields: Any) -> bytes:
    body = {"messages": HELLO} if url == CHAT else {"prompt": "Once"}
    body |= {"max_tokens": 6, "temperature": 0} | fields
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": body}).encode() + b"\n"


def keyed(asked: Asked, key: str = KEY) -> Asked:
    return Asked(**(vars(asked) | {"headers": asked.headers | {"Authorization": f"Bearer {key}"}}))


LINES = b"".join(line(f"row-{i}", max_tokens=3 + i) for i in range(4))
BAD_LINES = (
    line("good")
    + b"{broken\n"
    + line("good")  # twice
    + line("wrong", COMPLETIONS)
    + line("hot", temperature=9)
    + line("other", model="gpt-5")
    + b'{"custom_id": 5}\n'
)
LONG_CHAT = [{"role": "user", "content": f"Tell me story number {i}."} for i in range(40)]
TWO_PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]

_EVERY_PARAMETER = {
    "top_p": 0.9,
    "top_k": 20,
    "min_p": 0.05,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "repetition_penalty": 1.1,
    "seed": 7,
    "temperature": 0.8,
    "logit_bias": {"65": -100},
    "min_tokens": 3,
    "stop_token_ids": [300],
}

GENERATING = [
    chat("greedy"),
    chat("the same again, cached"),
    chat("streamed", stream=True),
    chat("streamed, usage at the end", stream=True, stream_options={"include_usage": True}),
    chat(
        "streamed, usage flag of the wrong type",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": 1},
    ),
    chat(
        "streamed, usage so far",
        stream=True,
        stream_options={"include_usage": True, "continuous_usage_stats": True},
    ),
    chat("streamed choices", stream=True, n=3, seed=1, temperature=1),
    chat("streamed log-probabilities", stream=True, logprobs=True, top_logprobs=2),
    chat("every sampling parameter", **_EVERY_PARAMETER),
    chat("choices", n=3, seed=5, temperature=1.2),
    chat("log-probabilities", logprobs=True, top_logprobs=3),
    chat("log-probabilities of the sampled only", logprobs=True),
    chat("stop string", max_tokens=60, stop=["e", "."]),
    chat("stop string kept", max_tokens=60, stop="e", include_stop_str_in_output=True),
    chat("token ids", return_token_ids=True),
    chat("special tokens shown", skip_special_tokens=False, ignore_eos=True, max_tokens=80),
    chat("by the served name", model="demo"),
    chat("content in parts", messages=[{"role": "user", "content": TWO_PARTS}]),
    chat("system and assistant", messages=[{"role": "system", "content": "Be brief."}, *HELLO]),
    chat(
        "final message continued",
        messages=[*HELLO, {"role": "assistant", "content": "Once upon"}],
        continue_final_message=True,
        add_generation_prompt=False,
    ),
    chat("template arguments", chat_template_kwargs={"whatever": 1}),
    chat("template arguments of the server's own", chat_template_kwargs={"messages": []}),
    chat("tier auto", service_tier="auto"),
    chat("tier default", service_tier="default"),
    chat("tier priority", service_tier="priority"),
    chat("tier flex", service_tier="flex"),
    chat("tier flex, streamed", service_tier="flex", stream=True),
    chat("priority", priority=-3),
    chat("user and salt", user="somebody", cache_salt="salt"),
    chat("unknown fields", nonsense=1, more={"a": []}),
    chat("fields that ask for nothing", tools=[], functions=[], suffix=None, bad_words=[], prompt_logprobs=False),
    chat("prompt log-probabilities", prompt_logprobs=0),
    chat("messages of forty turns", messages=LONG_CHAT),
    chat("max_completion_tokens", max_tokens=None, max_completion_tokens=4),
    chat("only the context limits it", max_tokens=None, messages=[{"role": "user", "content": "Hi"}], stop=["a"]),
    chat("no tokens", max_tokens=0),
    post(
        "chat: with an id of its own",
        CHAT,
        {"messages": HELLO, "max_tokens": 2},
        headers={"x-request-id": "mine-1"},
    ),
    post("chat: with an id that is none", CHAT, {"messages": HELLO, "max_tokens": 2}, headers={"x-request-id": "a b"}),
    completion("greedy"),
    completion("streamed", stream=True),
    completion("streamed, usage", stream=True, stream_options={"include_usage": True}),
    completion("several prompts", prompt=["Once", "The cat"], n=2, seed=3, temperature=1),
    completion("several prompts, streamed", prompt=["Once", "The cat"], stream=True),
    completion("token ids", prompt=[10, 20, 30], return_token_ids=True),
    completion("lists of token ids", prompt=[[10, 20], [30]]),
    completion("echo", echo=True),
    completion("echo with log-probabilities", echo=True, logprobs=2),
    completion("echo, nothing generated", echo=True, max_tokens=0, logprobs=1),
    completion("echo, streamed", echo=True, stream=True),
    completion("log-probabilities", logprobs=3),
    completion("log-probabilities, streamed", logprobs=0, stream=True),
    completion("default length", max_tokens=None),
    completion("empty prompt", prompt=""),
    completion("without special tokens", add_special_tokens=False),
    completion("answer too large", prompt="a", n=100, logprobs=20, max_tokens=2000),
    completion("suffix that asks for nothing", suffix=""),
]

OF_OTHERS = [  # protocols that other packages speak
    post("response: greedy", RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0}, keep="response"),
    post(
        "response: streamed", RESPONSES, {"input": "Hello", "max_output_tokens": 12, "temperature": 0, "stream": True}
    ),
    post(
        "response: the next turn", RESPONSES, {"input": "And?", "previous_response_id": "<response>", "temperature": 0}
    ),
    get("response: again", f"{RESPONSES}/<response>"),
    get("response: its input", f"{RESPONSES}/<response>/input_items"),
    post("response: cancelled", f"{RESPONSES}/<response>/cancel", {}),
    Asked("response: deleted", f"{RESPONSES}/<response>", None, "DELETE"),
    get("response: gone", f"{RESPONSES}/<response>"),
    post("message: greedy", MESSAGES, {"messages": HELLO, "max_tokens": 12, "temperature": 0, "model": "demo"}),
    post("message: streamed", MESSAGES, {"messages": HELLO, "max_tokens": 12, "temperature": 0, "stream": True}),
    post("message: without a limit", MESSAGES, {"messages": HELLO}),
    post("message: counted", f"{MESSAGES}/count_tokens", {"messages": HELLO, "model": "demo"}),
]

DOCUMENTS = {"query": "Hello", "documents": ["Hello there", "What is 7 + 5?"]}
EMBEDDING = [
    post("embedding", "/v1/embeddings", {"input": "Hello there", "model": "demo"}),
    post("embedding: in base64", "/v1/embeddings", {"input": ["Hello", "there"], "encoding_format": "base64"}),
    post("embedding: of nothing", "/v1/embeddings", {"input": []}),
    *(post(f"ranked: {path}", path, DOCUMENTS) for path in ("/rerank", "/v1/rerank", "/v2/rerank")),
    *(post(f"scored: {path}", path, {"text_1": "Hello", "text_2": ["there"]}) for path in ("/score", "/v1/score")),
]

READING = [
    get("tokenizer: closed", "/tokenizer_info"),
    post("reset of the cache: closed", "/reset_prefix_cache", {}),
    get("what is served, as a document", "/openapi.json"),
    get("what is served, as a page", "/docs"),
    get("ping", "/ping"),
    post("ping: posted", "/ping", {}),
    get("load", "/load"),
    get("a fleet where there is none", "/fleet"),
    get("health", "/health"),
    get("version", "/version"),
    get("page", "/"),
    get("models", "/v1/models"),
    get("model", "/v1/models/demo"),
    get("no such model", "/v1/models/gpt-5"),
    post("tokenize: prompt", "/tokenize", {"prompt": "Hello there", "return_token_strs": True}),
    post("tokenize: no special tokens", "/tokenize", {"prompt": "Hello there", "add_special_tokens": False}),
    post("tokenize: chat", "/tokenize", {"messages": HELLO}),
    post("tokenize: chat without generation prompt", "/tokenize", {"messages": HELLO, "add_generation_prompt": False}),
    post("tokenize: both", "/tokenize", {"messages": HELLO, "prompt": "a"}),
    post("tokenize: another model", "/tokenize", {"prompt": "a", "model": "gpt-5"}),
    post("tokenize: far too long", "/tokenize", {"prompt": "a b " * 200_000}),
    post("detokenize", "/detokenize", {"tokens": [72, 101, 300, 400]}),
    post("detokenize: far too many", "/detokenize", {"tokens": [1] * 300_000}),
    Asked("wrong method", "/v1/models", b"", "DELETE"),
    Asked("no route", "/v1/none", None, "GET"),
    get("metrics by the wrong method", "/tokenize"),
    get("another host", "/v1/models", headers={"Host": "evil.example"}),
    get("a page of another site", "/v1/models", headers={"Origin": "https://evil.example"}),
    Asked(
        "another site asks whether it may",
        CHAT,
        None,
        "OPTIONS",
        {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"},
    ),
    Asked(
        "compressed body that is none",
        CHAT,
        b"no gzip",
        "POST",
        {"Content-Type": "application/json", "Content-Encoding": "gzip"},
    ),
]

FILES = [
    upload("rows", LINES, keep="rows", purpose="batch"),
    upload("rows of which some are bad", BAD_LINES, keep="bad_rows", purpose="batch", filename="täst 1.jsonl"),
    upload("nothing", b"", keep="empty", purpose="batch"),
    upload("for a user", b"0123456789", keep="data", purpose="user_data"),
    upload(
        "that expires",
        b"x",
        keep="short",
        purpose="user_data",
        **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"},
    ),
    upload(
        "that expires too soon",
        b"x",
        purpose="user_data",
        **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3"},
    ),
    upload("no purpose", b"x"),
    upload("unknown purpose", b"x", purpose="fun"),
    upload("no file", None, purpose="batch"),
    post("upload: JSON", "/v1/files", {}),
    get("files", "/v1/files"),
    get("files, oldest first, two", "/v1/files?order=asc&limit=2"),
    get("files after one", "/v1/files?after=<data>"),
    get("files of a purpose", "/v1/files?purpose=user_data"),
    get("files, wrong limit", "/v1/files?limit=0"),
    get("files, wrong order", "/v1/files?order=up"),
    get("file", "/v1/files/<data>"),
    get("no such file", "/v1/files/file-none"),
    get("content", "/v1/files/<data>/content"),
    get("content, a range", "/v1/files/<data>/content", headers={"Range": "bytes=2-4"}),
    get("content, its end", "/v1/files/<data>/content", headers={"Range": "bytes=-3"}),
    get("content, a range outside", "/v1/files/<data>/content", headers={"Range": "bytes=20-"}),
    get("content of no file", "/v1/files/file-none/content"),
    Asked("file deleted", "/v1/files/<short>", None, "DELETE"),
    Asked("file deleted twice", "/v1/files/<short>", None, "DELETE"),
]


def batch(name: str, file: str, *, keep: str = "", **fields: Any) -> Asked:
    body = {"input_file_id": f"<{file}>", "endpoint": CHAT, "completion_window": "24h"} | fields
    return post(f"batch: {name}", "/v1/batches", body, keep=keep)


BATCHES = [
    batch("rows", "rows", keep="batch", metadata={"for": "comparing"}),
    get("batch when it has ended", "/v1/batches/<batch>", keep="ended", is_awaited=True),
    get("its output", "/v1/files/<ended_output_file_id>/content"),
    get("its output's file", "/v1/files/<ended_output_file_id>"),
    get("its results", "/v1/batches/<batch>/results"),
    get("its results, a page", "/v1/batches/<batch>/results?limit=2"),
    get("its results, wrong limit", "/v1/batches/<batch>/results?limit=5000"),
    Asked("cancelled after its end", "/v1/batches/<batch>/cancel", b""),
    batch("rows of which some are bad", "bad_rows", keep="bad_batch"),
    get("bad batch when it has ended", "/v1/batches/<bad_batch>", keep="bad_ended", is_awaited=True),
    get("its errors", "/v1/files/<bad_ended_error_file_id>/content"),
    get("its results, bad rows among them", "/v1/batches/<bad_batch>/results"),
    batch("of nothing", "empty", keep="empty_batch"),
    get("empty batch when it has failed", "/v1/batches/<empty_batch>", is_awaited=True),
    batch("for the other endpoint", "rows", endpoint=COMPLETIONS, keep="wrong_batch"),
    get("batch of wrong urls", "/v1/batches/<wrong_batch>", is_awaited=True),
    batch("of no endpoint", "rows", endpoint="/v1/embeddings"),
    batch("of no file", "none"),
    batch("of a file for something else", "data"),
    batch("window too long", "rows", completion_window="31d"),
    batch("window that is none", "rows", completion_window="soon"),
    batch("metadata of the wrong type", "rows", metadata={"a": 1}),
    batch("webhook that nobody configured", "rows", metadata={"webhook_url": "https://example.org/"}),
    batch("output that expires", "rows", output_expires_after={"anchor": "created_at", "seconds": 5}),
    get("batches", "/v1/batches"),
    get("batches, one", "/v1/batches?limit=1"),
    get("batches, too many", "/v1/batches?limit=101"),
    get("no such batch", "/v1/batches/batch_none"),
    get("results of no such batch", "/v1/batches/batch_none/results"),
    Asked("no such batch cancelled", "/v1/batches/batch_none/cancel", b""),
]

TALK = [*HELLO, {"role": "assistant", "content": "Once upon a time there was a cat."}]
SESSIONS = [
    get("no such session", "/v1/sessions/s1"),
    chat("of a session", session_id="s1"),
    post("chat: of a session by header", CHAT, {"messages": HELLO, "max_tokens": 3}, headers={"X-Session-Id": "s2"}),
    chat("of a session by cache key", prompt_cache_key="s3"),
    get("session", "/v1/sessions/s1"),
    post("advisory: typing", "/v1/advisories", {"session_id": "s1"}),
    post("advisory: agent step", "/v1/advisories", {"session_id": "s2", "event": "agent_step", "eta_ms": 500}),
    post("advisory: lease", "/v1/advisories", {"session_id": "s1", "lease_ms": 1000}),
    post("advisory: lease too long", "/v1/advisories", {"session_id": "s1", "lease_ms": 900_000}),
    post("advisory: draft", "/v1/advisories", {"session_id": "s1", "messages": TALK, "draft": "And then the cat "}),
    post("advisory: prompt", "/v1/advisories", {"session_id": "s4", "prompt": "Once upon a time " * 10}),
    post("advisory: cancel", "/v1/advisories", {"session_id": "s1", "event": "cancel"}),
    post("advisory: cancel of nothing", "/v1/advisories", {"session_id": "s9", "event": "cancel"}),
    post("advisory: no session", "/v1/advisories", {}),
    post("advisory: unknown event", "/v1/advisories", {"session_id": "s1", "event": "sleeping"}),
    post("advisory: both", "/v1/advisories", {"session_id": "s1", "prompt": "a", "messages": HELLO}),
    post("advisory: draft alone", "/v1/advisories", {"session_id": "s1", "draft": "a"}),
    post("advisory: negative lease", "/v1/advisories", {"session_id": "s1", "lease_ms": -1}),
    post("advisory: another model", "/v1/advisories", {"session_id": "s1", "model": "gpt-5"}),
    post("advisory: image", "/v1/advisories", {"session_id": "s1", "messages": [{"role": "user", "content": [{}]}]}),
    get("session under a salt", "/v1/sessions/s1?cache_salt=other"),
    Asked("session forgotten", "/v1/sessions/s2", None, "DELETE"),
    Asked("session forgotten twice", "/v1/sessions/s2", None, "DELETE"),
    post("webhook where none are believed", "/v1/webhooks/typing", {"type": "typing.started", "data": {}}),
]

BAD = [Asked(f"bad: {bad.name}", bad.path, bad.body, bad.method, {"Content-Type": bad.content_type}) for bad in
       BAD_REQUESTS]  # fmt: skip


def webhook(name: str, fields: Any, **more: Any) -> Asked:
    return post(f"webhook: {name}", "/v1/webhooks/typing", fields, is_signed=True, **more)


TYPING = {"type": "typing.started", "data": {"session_id": "w1"}}
KEYED = [
    chat("without a key"),
    keyed(chat("with a key")),
    keyed(chat("with another key: not cached"), OTHER_KEY),
    keyed(chat("with a wrong key"), "wrong"),
    post("chat: with a key of another kind", CHAT, {"messages": HELLO}, headers={"Authorization": "Basic eDp5"}),
    get("models without a key", "/v1/models"),
    get("health without a key", "/health"),
    get("page without a key", "/"),
    keyed(post("a body that is too large", CHAT, {"messages": [{"role": "user", "content": "a" * 70_000}]})),
    keyed(chat("of a session", session_id="s1")),
    keyed(get("session of one's own", "/v1/sessions/s1")),
    keyed(get("session of somebody else", "/v1/sessions/s1"), OTHER_KEY),
    keyed(upload("of one's own", LINES, keep="rows", purpose="batch")),
    keyed(get("file of somebody else", "/v1/files/<rows>"), OTHER_KEY),
    keyed(upload("beyond what a file may have", b"x" * 50_000, purpose="user_data")),
    keyed(upload("beyond what a batch's file may have", b"x" * 20_000, purpose="batch")),
    keyed(upload("much", b"x" * 35_000, keep="much", purpose="user_data")),
    keyed(upload("beyond what a key may store", b"x" * 35_000, purpose="user_data")),
    keyed(batch("of too many rows for a key", "rows", keep="batch")),
    keyed(get("batch of too many rows", "/v1/batches/<batch>", is_awaited=True)),
    keyed(batch("webhook to a private address", "rows", metadata={"webhook_url": "http://127.0.0.1:1/"})),
    keyed(batch("webhook that is no URL", "rows", metadata={"webhook_url": "nowhere"})),
    webhook("typing", TYPING),
    webhook("an agent's step", {"type": "agent.step", "data": {"session_id": "w1", "eta_ms": 100}}),
    webhook("stopped", {"type": "typing.stopped", "data": {"session_id": "w1"}}),
    webhook("of no session", {"type": "typing.started", "data": {}}),
    webhook("of an unknown kind", {"type": "typing.slowly", "data": {}}),
    post("webhook: not signed", "/v1/webhooks/typing", TYPING),
]
STORM = [post(f"advisory {i} of a storm", "/v1/advisories", {"session_id": "s1"}) for i in range(1, 5)]
FEW = [
    get("files without offline work", "/v1/files"),
    get("batches without offline work", "/v1/batches"),
    upload("without offline work", LINES, purpose="batch"),
    chat("longer than the context", messages=LONG_CHAT),
    chat("too many tokens for the context", max_tokens=500),
    chat("tier priority under a policy of priorities", service_tier="priority"),
    chat("tier flex without offline work", service_tier="flex"),
    get("models by several names", "/v1/models"),
    get("model by its second name", "/v1/models/second/name"),
    chat("by the second name", model="second/name"),
    chat("by the name that was replaced", model="demo"),
    get("a page of a site that may", "/v1/models", headers={"Origin": "https://good.example"}),
    Asked(
        "a site that may asks first",
        CHAT,
        None,
        "OPTIONS",
        {"Origin": "https://good.example", "Access-Control-Request-Method": "POST"},
    ),
]
NO_TIME = [chat("whose time is up", messages=LONG_CHAT, max_tokens=500), chat("its time is up, streamed", stream=True)]

SERVERS = [
    Served(
        "as it comes",
        ("--max-offline-step-ms", "50"),
        [*READING, *EMBEDDING, *GENERATING, *OF_OTHERS, *SESSIONS, *FILES, *BATCHES, *BAD],
    ),
    Served(
        "with keys and small limits",
        (
            *("--api-key", KEY, "--api-key", OTHER_KEY, "--max-body-bytes", "64K", "--max-pending-rows", "2"),
            *("--max-file-bytes", "40K", "--max-batch-file-bytes", "10K", "--max-stored-bytes", "64K"),
            *("--typing-webhook-secret", f"{KEY}:{SECRET}", "--webhook-secret-file", "$/secrets"),
        ),
        KEYED,
    ),
    Served(
        "without offline work",
        (
            *("--no-offline", "--scheduling-policy", "priority", "--max-model-len", "256"),
            *("--served-model-name", "first", "--served-model-name", "second/name"),
            *("--allowed-origins", "https://good.example"),
        ),
        FEW,
    ),
    Served("without time", ("--request-timeout-ms", "1", "--max-advisories-per-second", "0.001"), [*NO_TIME, *STORM]),
]

COMMANDS: list[tuple[str, ...]] = [
    ("--help",),
    ("--version",),
    ("version",),
    *((name, "--help") for name in ("serve", "calibrate", "simulate", "plan", "batch", "chat", "version")),
    *(("batch", verb, "--help") for verb in ("submit", "status", "results", "cancel")),
    (),
    ("nonsense",),
    ("serve", "--nonsense"),
    ("serve", "--max-num-seqs", "0"),
    ("serve", "--max-num-seqs", "many"),
    ("serve", "--scheduling-policy", "none"),
    ("serve", "--kv-cache-memory-bytes", "much"),
    ("serve", "--cache-kinds", "hidden"),
    ("serve", "--partial-caching"),
    ("serve", "--disk-cache-dir", "/nowhere"),
    ("serve", "--block-size", "1000"),
    ("serve", "--port", "70000"),
    ("serve", "--max-wait-ms", "-1"),
    ("serve", "--allowed-origins", "nonsense"),
    ("serve", "--typing-webhook-secret", "nonsense"),
    ("serve", "--webhook-url", "nonsense"),
    ("serve", "--config", "/nowhere/hocket.toml"),
    ("serve", "--latency-profile", "/nowhere/profile.json"),
    ("serve", "/nowhere/model"),
    ("batch", "submit"),
    ("batch", "status", "--limit", "none"),
    ("chat", "--url", "http://127.0.0.1:9"),
    ("batch", "status", "--url", "http://127.0.0.1:9"),
    ("simulate", "--policy", "none"),
    ("simulate", "--replay", "/nowhere/record"),
    ("plan", "--nonsense"),
]

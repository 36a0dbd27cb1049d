"""Every call this package can make, as data: method, path, body, and what comes back. No I/O."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from ._accumulate import Accumulator, ChatAccumulator, Chunk, CompletionAccumulator, Result
from ._decode import decode
from ._exceptions import APIResponseError
from ._options import Options
from ._params import AdvisoryParams, ChatParams, CompletionParams, Messages, Prompt
from ._retry import Outcome, Repeatable, as_error
from ._types import (
    ChatChunk,
    ChatCompletion,
    Completion,
    CompletionChunk,
    Detokenized,
    Health,
    Message,
    ModelList,
    Reply,
    SessionDeleted,
    SessionStatus,
    Timings,
    Tokens,
)
from ._upload import UploadBody

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and the type of its answer."""

    method: str
    path: str
    answer: type[T]
    body: Mapping[str, Any] | None = None
    upload: UploadBody | None = None  # instead of `body`
    creates: bool = False  # work that must not begin twice: not sent again if it is unclear whether it arrived

    def read(self, response: httpx.Response, e2e_ms: float) -> T:
        """The answer in a successful response that was read. Raises APIResponseError."""
        answer = decode(self.answer, read_json(response.content))
        if isinstance(answer, Reply):
            request_id = response.headers.get("x-request-id")
            return dataclasses.replace(answer, request_id=request_id, timings=Timings(e2e_ms=e2e_ms))
        return answer


@dataclass(frozen=True, slots=True)
class StreamCall(Generic[Chunk, Result]):
    """One request whose answer comes in chunks, and what adds them up."""

    path: str
    chunk: type[Chunk]
    accumulator: Callable[[], Accumulator[Chunk, Result]]
    body: Mapping[str, Any]
    method: str = "POST"


@dataclass(frozen=True, slots=True)
class Download:
    """The bytes of a file from `offset` on, to be read piece by piece."""

    path: str
    offset: int = 0
    method: str = "GET"
    body: None = None

    @property
    def headers(self) -> dict[str, str]:
        return {"range": f"bytes={self.offset}-", "accept": "*/*"} if self.offset else {"accept": "*/*"}


def headers(call: Call[Any] | StreamCall[Any, Any] | Download) -> dict[str, str]:
    """That this call needs besides the client's."""
    if isinstance(call, Download):
        return call.headers
    given = upload(call)
    return given.headers if given else {}


def upload(call: Call[Any] | StreamCall[Any, Any] | Download) -> UploadBody | None:
    return call.upload if isinstance(call, Call) else None


def repeatable(call: Call[Any] | StreamCall[Any, Any] | Download) -> Repeatable:
    given = upload(call)
    if given is not None and not given.is_repeatable:
        return Repeatable.NEVER
    return Repeatable.IF_REFUSED if isinstance(call, Call) and call.creates else Repeatable.ALWAYS


def read_json(content: bytes | str) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        raise APIResponseError(f"unexpected answer, not JSON: {content[:80]!r}") from None


def chat(messages: Messages, params: ChatParams, options: Options) -> Call[ChatCompletion]:
    body = {"messages": _messages(messages), **_given(params, options)}
    return Call("POST", "/v1/chat/completions", ChatCompletion, body)


def chat_stream(messages: Messages, params: ChatParams, options: Options) -> StreamCall[ChatChunk, ChatCompletion]:
    body = {"messages": _messages(messages), **STREAM, **_given(params, options)}
    return StreamCall("/v1/chat/completions", ChatChunk, ChatAccumulator, body)


def completion(prompt: Prompt, params: CompletionParams, options: Options) -> Call[Completion]:
    return Call("POST", "/v1/completions", Completion, {"prompt": prompt, **_given(params, options)})


def completion_stream(
    prompt: Prompt, params: CompletionParams, options: Options
) -> StreamCall[CompletionChunk, Completion]:
    body = {"prompt": prompt, **STREAM, **_given(params, options)}
    return StreamCall("/v1/completions", CompletionChunk, CompletionAccumulator, body)


def models() -> Call[ModelList]:
    return Call("GET", "/v1/models", ModelList)


def tokenize(text: Messages, add_special_tokens: bool | None, options: Options) -> Call[Tokens]:
    content = {"prompt": text} if isinstance(text, str) else {"messages": _messages(text)}
    body = {**content, **_given({"add_special_tokens": add_special_tokens}, options)}
    return Call("POST", "/tokenize", Tokens, body)


def detokenize(tokens: Sequence[int], options: Options) -> Call[Detokenized]:
    return Call("POST", "/detokenize", Detokenized, {"tokens": list(tokens), **_given({}, options)})


def advise(session_id: str, event: str, params: AdvisoryParams, options: Options) -> Call[SessionStatus]:
    given = _given(params, options)
    if "messages" in given:
        given["messages"] = _messages(given["messages"])
    return Call("POST", "/v1/advisories", SessionStatus, {"session_id": session_id, "event": event, **given})


def session_status(session_id: str) -> Call[SessionStatus]:
    return Call("GET", _session_path(session_id), SessionStatus)


def release_session(session_id: str) -> Call[SessionDeleted]:
    return Call("DELETE", _session_path(session_id), SessionDeleted)


def _session_path(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"


def health() -> Call[Health]:
    return Call("GET", "/health", Health)


def read_health(outcome: Outcome, options: Options) -> Health:
    """Being unwell is an answer too. Raises what `as_error` gives if the server says neither yes nor 503."""
    if not isinstance(outcome, httpx.Response) or not (outcome.is_success or outcome.status_code == 503):
        raise as_error(outcome, options)
    try:
        details = json.loads(outcome.content)
    except ValueError:
        details = {}
    details = details if isinstance(details, dict) else {}
    status = str(details.get("status") or ("ok" if outcome.is_success else "unavailable"))
    return Health(is_healthy=outcome.is_success, status=status, details=details)


# Usage is always asked for: without it a streamed answer would know less of itself than a plain one.
STREAM: Mapping[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def _messages(messages: Messages) -> list[Mapping[str, Any]]:
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return [dataclasses.asdict(message) if isinstance(message, Message) else message for message in messages]


def _given(params: Mapping[str, Any], options: Options) -> dict[str, Any]:
    """What the caller named; None counts as not named."""
    named = {name: value for name, value in params.items() if value is not None and name != "extra_body"}
    model = {"model": options.model} if options.model is not None else {}
    return {**model, **named, **(params.get("extra_body") or {})}

"""`POST /v1/chat/completions`: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.protocol.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import MAX_TOP_LOGPROBS, GenerationRequest, TokenCount, check_generation
from gateway.protocol.response import Usage


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_call_id: str | None = None
    tool_calls: Any = None  # of an earlier answer; handed to the template


class ChatRequest(GenerationRequest, frozen=True, kw_only=True):
    messages: Annotated[list[Message], Meta(min_length=1)]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None

    # How the chat template is applied: vLLM's extras
    add_generation_prompt: bool | None = None  # default: true, unless the final message is continued
    continue_final_message: bool | None = None
    add_special_tokens: bool | None = None  # default: false, templates write their own
    chat_template_kwargs: dict[str, Any] | None = None

    chat_template: Any = None
    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    documents: Any = None

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


_UNSUPPORTED = ("tools", "functions", "audio", "web_search_options", "documents", "chat_template")
_decoder = msgspec.json.Decoder(ChatRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """Raises InvalidRequestError."""
    request = decode_json(_decoder, body)
    check_chat(request)
    return request


def check_chat(request: ChatRequest) -> None:
    """What types alone cannot say. Raises InvalidRequestError."""
    check_generation(request, _UNSUPPORTED)
    for name in ("tool_choice", "function_call"):
        if getattr(request, name) not in (None, "none", "auto"):
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")
    if request.modalities not in (None, ["text"]):
        raise InvalidRequestError("Only text is supported.", param="modalities", code="unsupported")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    check_messages(request)


def check_messages(request: ChatRequest) -> None:
    """Raises InvalidRequestError where a message holds what the model cannot read."""
    for i, message in enumerate(request.messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                _check_part(part, f"messages[{i}].content[{j}]")
        elif message.content is None and message.role != "assistant":
            raise InvalidRequestError(
                f"Missing required parameter: 'messages[{i}].content'.",
                param=f"messages[{i}].content",
                code="missing_parameter",
            )
    if request.continue_final_message and request.add_generation_prompt:
        raise InvalidRequestError(
            "'continue_final_message' and 'add_generation_prompt' exclude each other.", param="continue_final_message"
        )


def _check_part(part: ContentPart, where: str) -> None:
    if part.type not in ("text", "input_text", "refusal"):
        raise InvalidRequestError(
            f"Content of type '{part.type}' is not supported: this model reads text.",
            param=f"{where}.type",
            code="unsupported",
        )
    if part.text is None:
        raise InvalidRequestError(
            f"Missing required parameter: '{where}.text'.", param=f"{where}.text", code="missing_parameter"
        )


class TopLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct, frozen=True):
    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    content: list[ChatLogprob]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True):
    content: str
    role: str = "assistant"
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    service_tier: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET

"""`POST /v1/chat/completions`: request and response."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import MAX_TOP_LOGPROBS, GenerationRequest, TokenCount, check_generation
from gateway.protocol.output.tools import (
    MAX_TOOLS,
    Choice,
    EarlierCall,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    check_tools,
)
from gateway.protocol.response import Usage

MAX_MESSAGES = 8192
THINKING_SWITCHES = ("enable_thinking", "thinking")  # of templates, by the families' names
MAX_TEMPLATE_KWARGS = 256
MAX_CONTENT_PARTS = 8192  # of all messages together
IMAGE = "image_url"  # the type of a content part


Role = Annotated[str, Meta(min_length=1, max_length=64)]  # OpenAI's, or what else the template knows


class ImageUrl(msgspec.Struct, frozen=True):
    url: str
    detail: str | None = None  # how much of it is looked at is the model's own choice


class ContentPart(msgspec.Struct, frozen=True):
    type: str
    text: str | None = None
    image_url: ImageUrl | str | None = None

    @property
    def url(self) -> str | None:
        return self.image_url.url if isinstance(self.image_url, ImageUrl) else self.image_url


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    role: Role
    content: str | list[ContentPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None  # the same by vLLM's newer name
    tool_call_id: str | None = None
    tool_calls: list[EarlierCall] | None = None  # of an earlier answer; handed to the template


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
    reasoning_effort: Annotated[str, Meta(max_length=32)] | None = None  # for templates that know it; none: no thinking
    include_reasoning: bool | None = None  # default: true; thinking is told

    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Choice | ToolChoice | None = None  # default: auto, where there are tools
    parallel_tool_calls: bool | None = None  # default: true

    chat_template: Any = None
    functions: Any = None
    function_call: Any = None
    modalities: Any = None
    audio: Any = None
    web_search_options: Any = None
    documents: Any = None
    echo: bool | None = None
    return_prompt_text: bool | None = None

    @property
    def calls_tools(self) -> bool:
        """Whether the answer may be a call."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def num_logprobs(self) -> int | None:
        if not self.logprobs:
            return None
        return 0 if self.logprob_token_ids else self.top_logprobs or 0


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "functions": ([],),
    "audio": (),
    "web_search_options": (),  # {} is a search with the usual options
    "documents": ([],),
    "chat_template": (),
    "echo": (False,),
    "return_prompt_text": (False,),
}
_TEMPLATE_VARIABLES = {  # that are not a request's to set
    *("messages", "tools", "documents", "tokenize", "chat_template", "add_generation_prompt", "continue_final_message"),
    *("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"),
    *("additional_special_tokens", "raise_exception", "strftime_now"),
}
_decoder = msgspec.json.Decoder(ChatRequest)


def decode_chat(body: bytes) -> ChatRequest:
    """Raises InvalidRequestError."""
    request = decode_json(_decoder, body)
    check_chat(request, takes_images=True)
    return request


def check_chat(request: ChatRequest, *, takes_images: bool = False) -> None:
    """What types alone cannot say. takes_images: they are still to be checked. Raises InvalidRequestError."""
    check_generation(request, _UNSUPPORTED)
    if request.function_call not in (None, "none", "auto"):
        raise InvalidRequestError(
            "'function_call' is not supported by this server: use 'tools'.", param="function_call", code="unsupported"
        )
    check_tools(request.tools, request.tool_choice)
    if request.modalities not in (None, ["text"]):
        raise InvalidRequestError("Only text is supported.", param="modalities", code="unsupported")
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequestError("'top_logprobs' is only allowed when 'logprobs' is true.", param="top_logprobs")
    if request.logprob_token_ids and not request.logprobs:
        raise InvalidRequestError(
            "'logprob_token_ids' is only allowed when 'logprobs' is true.", param="logprob_token_ids"
        )
    check_messages(request, takes_images=takes_images)


def check_messages(request: ChatRequest, *, takes_images: bool = False) -> None:
    """Raises InvalidRequestError where a message, or what else the template gets, is what it may not be."""
    for name in request.chat_template_kwargs or ():
        if name in _TEMPLATE_VARIABLES:
            param = f"chat_template_kwargs.{name}"
            raise InvalidRequestError(f"'{param}' is the server's to set.", param=param, code="unsupported")
    if len(request.messages) > MAX_MESSAGES:
        raise InvalidRequestError(f"At most {MAX_MESSAGES} messages make a chat: send fewer.", param="messages")
    if sum(len(m.content) for m in request.messages if isinstance(m.content, list)) > MAX_CONTENT_PARTS:
        raise InvalidRequestError(
            f"At most {MAX_CONTENT_PARTS} content parts make a chat: join some.", param="messages"
        )
    if len(request.chat_template_kwargs or ()) > MAX_TEMPLATE_KWARGS:
        raise InvalidRequestError(
            f"At most {MAX_TEMPLATE_KWARGS} template variables may be given.", param="chat_template_kwargs"
        )
    for i, message in enumerate(request.messages):
        if isinstance(message.content, list):
            for j, part in enumerate(message.content):
                _check_part(part, f"messages[{i}].content[{j}]", takes_images)
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


def not_supported(kind: str, where: str) -> InvalidRequestError:
    """Of the content part at that path."""
    return InvalidRequestError(
        f"Content of type '{kind}' is not supported: this model reads text.", param=f"{where}.type", code="unsupported"
    )


def _check_part(part: ContentPart, where: str, takes_images: bool) -> None:
    if part.type == IMAGE and takes_images:
        return
    if part.type not in ("text", "input_text", "refusal"):
        raise not_supported(part.type, where)
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
    content: Annotated[  # each a ChatLogprob, written out
        list[msgspec.Raw], Meta(extra_json_schema={"items": {"$ref": "#/components/schemas/ChatLogprob"}})
    ]
    refusal: None = None


class AssistantMessage(msgspec.Struct, frozen=True):
    content: str | None
    role: str = "assistant"
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # the same by vLLM's newer name
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: ChatLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET  # the same by vLLM's newer name
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


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
    prompt_logprobs: list[msgspec.Raw | None] | UnsetType | None = UNSET

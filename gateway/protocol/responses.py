"""`POST /v1/responses`: a chat in OpenAI's newer shapes. What the model is asked is a ChatRequest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.chat import ChatRequest, ContentPart, Message, check_chat
from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import MAX_TOP_LOGPROBS, GenerationRequest, Name, TokenCount
from gateway.protocol.output.output_format import JsonSchema, ResponseFormat
from gateway.protocol.output.tools import (
    CalledFunction,
    Choice,
    EarlierCall,
    Tool,
    ToolChoice,
    as_tool_choice,
    as_tools,
)

LOGPROBS = "message.output_text.logprobs"  # of `include`


class InputItem(msgspec.Struct, frozen=True):
    """A message, a call of a tool, its result, or something that only OpenAI's own models know."""

    type: str = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: str | list[ContentPart] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | list[ContentPart] | None = None
    summary: list[ContentPart] | None = None


class TextFormat(msgspec.Struct, frozen=True):
    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | bool | None = None
    strict: bool | None = None
    description: str | None = None


class TextOptions(msgspec.Struct, frozen=True):
    format: TextFormat | None = None
    verbosity: str | None = None


class Reasoning(msgspec.Struct, frozen=True):
    effort: Annotated[str, Meta(max_length=32)] | None = None


class ResponsesBody(GenerationRequest, frozen=True, kw_only=True):
    """As it is sent. What both completion routes know of sampling is known here, too."""

    input: str | list[InputItem]
    instructions: str | None = None
    max_output_tokens: TokenCount | None = None
    previous_response_id: Name | None = None
    store: bool | None = None  # default: true
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    include: list[str] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    text: TextOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    truncation: str | None = None
    reasoning: Reasoning | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    background: bool | None = None  # it is not waited for

    # Refused: they change what is answered
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    include_reasoning: bool | None = None
    previous_input_messages: Any = None
    enable_response_messages: bool | None = None


class ResponsesRequest(ChatRequest, frozen=True, kw_only=True):
    """What the model is asked, and what its client is told again."""

    asked: ResponsesBody

    @property
    def is_kept(self) -> bool:
        return self.asked.store is not False

    @property
    def is_background(self) -> bool:
        return bool(self.asked.background)


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "conversation": (),
    "prompt": (),
    "context_management": ([],),
    "include_reasoning": (True,),
    "previous_input_messages": ([],),
    "enable_response_messages": (False,),
    "truncation": ("disabled",),
    "n": (1,),
    "prompt_logprobs": (False,),
    "return_token_ids": (False,),
    "max_tokens": (),  # it is max_output_tokens here
    "response_format": (),  # it is text.format here
}
_decoder = msgspec.json.Decoder(ResponsesBody)


def decode_responses(body: bytes) -> ResponsesRequest:
    """Without the messages of `previous_response_id`. Raises InvalidRequestError."""
    asked = decode_json(_decoder, body)
    for name, off in _UNSUPPORTED.items():
        value = getattr(asked, name)
        if value is not None and value not in off:
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")
    _check_background(asked)
    wants_logprobs = asked.top_logprobs is not None or LOGPROBS in (asked.include or ())
    fields = {name: getattr(asked, name) for name in GenerationRequest.__struct_fields__}
    fields |= {
        "asked": asked,
        "messages": messages_of(asked),
        "max_completion_tokens": asked.max_output_tokens,
        "logprobs": wants_logprobs or None,
        "top_logprobs": asked.top_logprobs if wants_logprobs else None,
        "response_format": _response_format(asked.text),
        "tools": _tools(asked.tools),
        "tool_choice": _tool_choice(asked.tool_choice),
        "parallel_tool_calls": asked.parallel_tool_calls,
        "chat_template_kwargs": asked.chat_template_kwargs,
        "reasoning_effort": asked.reasoning.effort if asked.reasoning else None,
    }
    request = ResponsesRequest(**fields)
    check_chat(request)
    return request


def _check_background(asked: ResponsesBody) -> None:
    if asked.background and asked.stream:
        raise InvalidRequestError(
            "'background' and 'stream' together are not supported by this server: ask for the response by its id.",
            param="background",
            code="unsupported",
        )
    if asked.background and asked.store is False:
        raise InvalidRequestError("'background' needs 'store': the response is asked for later.", param="store")


def messages_of(asked: ResponsesBody) -> list[Message]:
    """The instructions are not among them: they are this response's alone. Raises InvalidRequestError."""
    if isinstance(asked.input, str):
        return [Message("user", asked.input)]
    messages: list[Message] = []
    thought: str | None = None  # before the next answer
    for i, item in enumerate(asked.input):
        if item.type == "reasoning":
            thought = _thought(item)
            continue
        _add(messages, item, f"input[{i}]")
        if thought and messages[-1].role == "assistant":
            messages[-1] = msgspec.structs.replace(messages[-1], reasoning_content=thought)
        thought = None
    if not messages:
        raise InvalidRequestError("'input' holds no message.", param="input")
    return messages


def _add(messages: list[Message], item: InputItem, where: str) -> None:
    if item.type == "message":
        if item.role is None or item.content is None:
            missing = f"{where}.{'role' if item.role is None else 'content'}"
            raise InvalidRequestError(
                f"Missing required parameter: '{missing}'.", param=missing, code="missing_parameter"
            )
        messages.append(Message(item.role, _content(item.content)))
    elif item.type == "function_call":
        if item.name is None:
            raise InvalidRequestError(
                f"Missing required parameter: '{where}.name'.", param=f"{where}.name", code="missing_parameter"
            )
        call = EarlierCall(CalledFunction(item.name, item.arguments), item.call_id, "function")
        if messages and messages[-1].role == "assistant":
            last = messages.pop()
            messages.append(msgspec.structs.replace(last, tool_calls=[*(last.tool_calls or ()), call]))
        else:
            messages.append(Message("assistant", tool_calls=[call]))
    elif item.type == "function_call_output":
        messages.append(Message("tool", _content(item.output or ""), tool_call_id=item.call_id))
    else:
        raise InvalidRequestError(
            f"Input of type '{item.type}' is not supported by this server.", param=f"{where}.type", code="unsupported"
        )


def _thought(item: InputItem) -> str | None:
    """Of an earlier answer: templates may show it."""
    parts = item.content if isinstance(item.content, list) else []
    return "\n".join(part.text for part in [*parts, *(item.summary or ())] if part.text) or None


def _content(content: str | list[ContentPart]) -> str | list[ContentPart]:
    if isinstance(content, str):
        return content
    return [msgspec.structs.replace(part, type="text") if part.type == "output_text" else part for part in content]


def _response_format(text: TextOptions | None) -> ResponseFormat | None:
    if text is None or text.format is None:
        return None
    of = text.format
    is_schema = of.type == "json_schema"
    return ResponseFormat(of.type, JsonSchema(of.name, of.description, of.schema, of.strict) if is_schema else None)


def _tools(tools: list[dict[str, Any]] | None) -> list[Tool] | None:
    """As a chat's tools. Raises InvalidRequestError for those that OpenAI runs itself."""
    if not tools:
        return None
    for i, tool in enumerate(tools):
        if tool.get("type") != "function":
            raise InvalidRequestError(
                f"Tools of type '{tool.get('type')}' are not supported by this server.",
                param=f"tools[{i}].type",
                code="unsupported",
            )
    made = [{"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}} for tool in tools]
    return as_tools(made, [f"tools[{i}]" for i in range(len(tools))])


def _tool_choice(choice: Any) -> Choice | ToolChoice | None:
    """Raises InvalidRequestError."""
    if isinstance(choice, dict) and choice.get("type") == "function" and "name" in choice:
        return as_tool_choice({"type": "function", "function": {"name": choice["name"]}})
    return as_tool_choice(choice)


# ---- what is answered ----


class OutputText(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: list[Any] = []
    logprobs: list[msgspec.Raw] = []


class OutputMessage(msgspec.Struct, frozen=True, tag="message"):
    id: str
    status: str
    content: list[OutputText]
    role: str = "assistant"


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text"):
    text: str


class ReasoningItem(msgspec.Struct, frozen=True, tag="reasoning"):
    id: str
    status: str
    content: list[ReasoningText]
    summary: list[Any] = []
    encrypted_content: None = None


class FunctionCallItem(msgspec.Struct, frozen=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: str


class IncompleteDetails(msgspec.Struct, frozen=True):
    reason: str


class ResponseFailure(msgspec.Struct, frozen=True):
    code: str
    message: str


class InputTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class ResponsesUsage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: dict[str, str]
    model: str
    output: Sequence[ReasoningItem | OutputMessage | FunctionCallItem]
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str | None = None
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_p: float
    top_logprobs: int = 0
    truncation: str = "disabled"
    background: bool = False
    usage: ResponsesUsage | None = None
    user: str | None = None


class DeletedResponse(msgspec.Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class InputItems(msgspec.Struct, frozen=True):
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    object: str = "list"
    has_more: bool = False

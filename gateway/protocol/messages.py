"""`POST /v1/messages`, and its count of tokens: a chat in Anthropic's shapes. The model is asked a ChatRequest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.chat import THINKING_SWITCHES, ChatRequest, ContentPart, Message, check_chat
from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import MAX_STOP_STRINGS, Name, ServiceTier, StopString
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

_TIERS: dict[str | None, ServiceTier | None] = {"auto": "auto", "standard_only": "default"}


class Block(msgspec.Struct, frozen=True):
    """Of a message: text, a call of a tool, its result, or earlier thinking."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None
    tool_use_id: str | None = None
    content: str | list[ContentPart] | None = None
    is_error: bool | None = None


class TextBlock(msgspec.Struct, frozen=True):
    text: str
    type: Literal["text"] = "text"


class InputMessage(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class Metadata(msgspec.Struct, frozen=True):
    user_id: Name | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    type: Literal["json_schema"]
    schema: dict[str, Any] | bool


class OutputConfig(msgspec.Struct, frozen=True):
    format: OutputFormat | None = None
    effort: Annotated[str, Meta(max_length=32)] | None = None


class ThinkingOption(msgspec.Struct, frozen=True):
    """budget_tokens and display are not for us to say: the model decides how long it thinks."""

    type: Literal["enabled", "disabled", "adaptive"]


class MessagesBody(msgspec.Struct, frozen=True, kw_only=True):
    """As it is sent; unknown fields are ignored."""

    model: str | None = None
    messages: Annotated[list[InputMessage], Meta(min_length=1)]
    max_tokens: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None
    system: str | list[TextBlock] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stream: bool | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    metadata: Metadata | None = None
    service_tier: Literal["auto", "standard_only"] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    session_id: Name | None = None
    cache_salt: Name | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    thinking: ThinkingOption | None = None
    output_config: OutputConfig | None = None

    # Refused: they change what is answered
    container: Any = None
    mcp_servers: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    watermarking: Any = None


class MessagesRequest(ChatRequest, frozen=True, kw_only=True):
    """What the model is asked."""


_UNSUPPORTED = (
    *("container", "mcp_servers", "kv_transfer_params", "ec_transfer_params", "vllm_xargs", "watermarking"),
)
_decoder = msgspec.json.Decoder(MessagesBody)


def decode_messages(body: bytes) -> MessagesRequest:
    """Raises InvalidRequestError."""
    asked = decode_json(_decoder, body)
    if asked.max_tokens is None:
        raise InvalidRequestError(
            "Missing required parameter: 'max_tokens'.", param="max_tokens", code="missing_parameter"
        )
    return _request(asked)


def decode_count(body: bytes) -> MessagesRequest:
    """Of /v1/messages/count_tokens, where nothing is generated. Raises InvalidRequestError."""
    return _request(decode_json(_decoder, body))


def _request(asked: MessagesBody) -> MessagesRequest:
    for name in _UNSUPPORTED:
        if getattr(asked, name):
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")
    request = MessagesRequest(
        model=asked.model,
        messages=_messages(asked),
        max_tokens=asked.max_tokens,
        stop=asked.stop_sequences,
        stream=asked.stream,
        temperature=asked.temperature,
        top_p=asked.top_p,
        top_k=asked.top_k,
        user=asked.metadata.user_id if asked.metadata else None,
        service_tier=_TIERS.get(asked.service_tier),
        session_id=asked.session_id,
        cache_salt=asked.cache_salt,
        response_format=_response_format(asked.output_config),
        tools=_tools(asked.tools),
        tool_choice=_tool_choice(asked.tool_choice),
        parallel_tool_calls=not (asked.tool_choice or {}).get("disable_parallel_tool_use", False),
        chat_template_kwargs=_template_kwargs(asked),
        reasoning_effort=asked.output_config.effort if asked.output_config else None,
    )
    check_chat(request)
    return request


def _template_kwargs(asked: MessagesBody) -> dict[str, Any] | None:
    """Thinking is a switch of templates; those who set it by its own name know better."""
    if asked.thinking is None or asked.thinking.type == "adaptive":
        return asked.chat_template_kwargs
    is_on = asked.thinking.type == "enabled"
    return dict.fromkeys(THINKING_SWITCHES, is_on) | (asked.chat_template_kwargs or {})


def _messages(asked: MessagesBody) -> list[Message]:
    messages: list[Message] = []
    if asked.system:
        system = asked.system
        shown = system if isinstance(system, str) else [_part(block.text) for block in system]
        messages.append(Message("system", shown))
    for i, message in enumerate(asked.messages):
        if isinstance(message.content, str):
            messages.append(Message(message.role, message.content))
        else:
            messages += _of_blocks(message.role, message.content, f"messages[{i}].content")
    return messages


def _of_blocks(role: Literal["user", "assistant", "system"], blocks: list[Block], where: str) -> list[Message]:
    """Results of tools are messages of their own, before what the user says beside them."""
    results: list[Message] = []
    parts: list[ContentPart] = []
    calls: list[EarlierCall] = []
    thoughts = [block.thinking for block in blocks if block.type == "thinking" and block.thinking]
    for j, block in enumerate(blocks):
        if block.type == "text":
            if block.text is None:
                raise InvalidRequestError(
                    f"Missing required parameter: '{where}[{j}].text'.",
                    param=f"{where}[{j}].text",
                    code="missing_parameter",
                )
            parts.append(_part(block.text))
        elif block.type == "tool_use":
            calls.append(EarlierCall(CalledFunction(block.name or "", block.input or {}), block.id, "function"))
        elif block.type == "tool_result":
            results.append(Message("tool", block.content or "", tool_call_id=block.tool_use_id))
        elif block.type not in ("thinking", "redacted_thinking"):
            raise InvalidRequestError(
                f"Content of type '{block.type}' is not supported: this model reads text.",
                param=f"{where}[{j}].type",
                code="unsupported",
            )
    if parts or calls or not results:
        thought = "\n".join(thoughts) or None
        results.append(Message(role, parts or "", tool_calls=calls or None, reasoning_content=thought))
    return results


def _part(text: str) -> ContentPart:
    return ContentPart("text", text)


def _response_format(config: OutputConfig | None) -> ResponseFormat | None:
    if config is None or config.format is None:
        return None
    return ResponseFormat("json_schema", JsonSchema(schema=config.format.schema))


def _tools(tools: list[dict[str, Any]] | None) -> list[Tool] | None:
    """As a chat's tools. Raises InvalidRequestError for those that Anthropic runs itself."""
    if not tools:
        return None
    found = []
    for i, tool in enumerate(tools):
        if tool.get("type", "custom") != "custom":
            raise InvalidRequestError(
                f"Tools of type '{tool['type']}' are not supported by this server.",
                param=f"tools[{i}].type",
                code="unsupported",
            )
        function = {"name": tool.get("name"), "parameters": tool.get("input_schema")}
        if tool.get("description") is not None:
            function["description"] = tool["description"]
        found.append({"type": "function", "function": function})
    return as_tools(found, [f"tools[{i}]" for i in range(len(found))])


def _tool_choice(choice: dict[str, Any] | None) -> Choice | ToolChoice | None:
    """Raises InvalidRequestError."""
    if choice is None:
        return None
    if choice.get("type") == "tool":
        return as_tool_choice({"type": "function", "function": {"name": choice.get("name")}})
    return as_tool_choice("required" if choice.get("type") == "any" else choice.get("type"))


# ---- what is answered ----


class ThinkingBlock(msgspec.Struct, frozen=True, tag="thinking"):
    thinking: str
    signature: str = ""  # nobody signs it here


class ToolUseBlock(msgspec.Struct, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: Any


class AnswerBlock(msgspec.Struct, frozen=True, tag="text"):
    text: str


class MessagesUsage(msgspec.Struct, frozen=True):
    """Tokens from the cache are counted apart, unlike in OpenAI's usage."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int = 0


class MessageObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: Sequence[ThinkingBlock | AnswerBlock | ToolUseBlock]
    stop_reason: str | None
    stop_sequence: str | None
    usage: MessagesUsage


class TokenCount(msgspec.Struct, frozen=True):
    input_tokens: int

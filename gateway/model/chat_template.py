"""Messages -> prompt text, by the template that the checkpoint ships, with what Hugging Face's templates may use.

The template comes with the model and the messages from anywhere, so both meet in Jinja's sandbox.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.model.checkpoint import CheckpointError
from gateway.protocol.chat import IMAGE, THINKING_SWITCHES, ChatRequest, Message
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.tools import EarlierCall, Function
from gateway.tools.plain_prompt import with_plain_tools

MAX_INLINE_RENDERED = 16_384  # a smaller chat is rendered in less time than a thread hop is worth
MESSAGE_SIZE = 128  # a message costs the template as much as so many characters


class ChatTemplate:
    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Raises CheckpointError if the template is malformed."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise CheckpointError(f"The chat template is malformed at line {error.lineno}: {error.message}") from None
        tree = environment.parse(source)
        self.knows_tools = "tools" in meta.find_undeclared_variables(tree)
        self.knows_images = "image" in source
        self._wants_parts = self.knows_images and not any(test.name == "string" for test in tree.find_all(nodes.Test))
        self.source = source
        self._special_tokens = dict(special_tokens)
        self._knows_developers = "developer" in source

    def render(self, request: ChatRequest) -> str:
        """Raises InvalidRequestError where the template refuses the messages."""
        messages = [self._as_dict(message) for message in request.messages]
        tools = [_tool(tool.function) for tool in request.tools or ()] if request.calls_tools else []
        if not self.knows_tools:
            messages, tools = with_plain_tools(messages, tools), []
        if self._wants_parts:
            messages = [message | {"content": _as_parts(message["content"])} for message in messages]
        continues = bool(request.continue_final_message)
        adds_prompt = not continues if request.add_generation_prompt is None else request.add_generation_prompt
        variables = _thinking(request.reasoning_effort) | (request.chat_template_kwargs or {}) | self._special_tokens
        variables |= {
            "messages": messages,
            "add_generation_prompt": adds_prompt,
            "tools": tools or None,
            "documents": None,
        }
        try:
            text = self._template.render(variables)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages", code="template_error"
            ) from None
        return _until_end_of(_text(request.messages[-1]), text) if continues else text

    def _as_dict(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": message.role, "content": _content(message)}
        if message.role == "developer" and not self._knows_developers:
            fields["role"] = "system"
        thought = message.reasoning if message.reasoning_content is None else message.reasoning_content
        known = {"name": message.name, "reasoning_content": thought, "tool_call_id": message.tool_call_id}
        fields |= {name: value for name, value in known.items() if value is not None}
        if message.tool_calls:
            fields["tool_calls"] = [_call(call) for call in message.tool_calls]
        return fields


def _thinking(effort: str | None) -> dict[str, Any]:
    """What templates ask about it: some by how much, some whether at all."""
    if effort is None:
        return {}
    return {"reasoning_effort": effort} | (dict.fromkeys(THINKING_SWITCHES, False) if effort == "none" else {})


def _tool(function: Function) -> dict[str, Any]:
    """As Transformers makes one of a Python function."""
    said = {"name": function.name, "description": function.description, "parameters": function.parameters}
    return {"type": "function", "function": {name: value for name, value in said.items() if value is not None}}


def _call(call: EarlierCall) -> dict[str, Any]:
    """Templates expect arguments as an object."""
    arguments = call.function.arguments
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    made: dict[str, Any] = {"type": "function", "function": {"name": call.function.name, "arguments": arguments or {}}}
    return made if call.id is None else {"id": call.id, **made}


def _content(message: Message) -> str | list[dict[str, str]]:
    """A text, or where images are among it Hugging Face's parts."""
    parts = message.content
    if not isinstance(parts, list) or all(part.type != IMAGE for part in parts):
        return _text(message)
    return [{"type": "image"} if part.type == IMAGE else {"type": "text", "text": part.text or ""} for part in parts]


def _as_parts(content: str | list[dict[str, str]]) -> list[dict[str, str]]:
    """For templates that read nothing else."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text or "" for part in message.content)
    return message.content or ""


def num_content_characters(message: Message) -> int:
    content = message.content
    parts = [part.text or "" for part in content] if isinstance(content, list) else [content or ""]
    return sum(map(len, parts))


def _until_end_of(content: str, text: str) -> str:
    """Cuts what a template writes after the final message, so that the model goes on with it."""
    trimmed = content.strip()
    start = len(text) - len(trimmed) - text[::-1].find(trimmed[::-1])  # unlike rfind(), linear in any text
    if not trimmed or trimmed not in text:
        raise InvalidRequestError(
            "The final message cannot be continued: the chat template does not show its content.",
            param="continue_final_message",
        )
    as_written = content.lstrip()
    kept = as_written if text.startswith(as_written, start) else trimmed
    return text[:start] + kept


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes for HTML, which is wrong in a prompt."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; for serving it is its body."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's interface)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

"""Messages -> prompt text, by the template that the checkpoint ships, with what Hugging Face's templates may use.

The template comes with the model and the messages from anywhere, so both meet in Jinja's sandbox.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from gateway.checkpoint import CheckpointError
from gateway.protocol.chat import ChatRequest, Message
from gateway.protocol.errors import InvalidRequestError


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
        self._special_tokens = dict(special_tokens)
        self._knows_developers = "developer" in source

    def render(self, request: ChatRequest) -> str:
        """Raises InvalidRequestError where the template refuses the messages."""
        messages = [self._as_dict(message) for message in request.messages]
        continues = bool(request.continue_final_message)
        adds_prompt = not continues if request.add_generation_prompt is None else request.add_generation_prompt
        variables = self._special_tokens | (request.chat_template_kwargs or {})
        variables |= {"messages": messages, "add_generation_prompt": adds_prompt, "tools": None, "documents": None}
        try:
            text = self._template.render(variables)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError, ArithmeticError) as error:
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {error}", param="messages", code="template_error"
            ) from None
        return _until_end_of(messages[-1]["content"], text) if continues else text

    def _as_dict(self, message: Message) -> dict[str, Any]:
        fields: dict[str, Any] = {"role": message.role, "content": _text(message)}
        if message.role == "developer" and not self._knows_developers:
            fields["role"] = "system"
        for name in ("name", "reasoning_content", "tool_call_id", "tool_calls"):
            if getattr(message, name) is not None:
                fields[name] = getattr(message, name)
        return fields


def _text(message: Message) -> str:
    if isinstance(message.content, list):
        return "\n".join(part.text or "" for part in message.content)
    return message.content or ""


def _until_end_of(content: str, text: str) -> str:
    """Cuts what a template writes after the final message, so that the model goes on with it."""
    trimmed = content.strip()
    start = text.rfind(trimmed)
    if not trimmed or start < 0:
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

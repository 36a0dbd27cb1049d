"""The answer to `/v1/messages`: a chat's, in Anthropic's shapes, whole or as events."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.answers.answer import Answer
from gateway.answers.chat_answer import chat_prompt
from gateway.answers.event_stream import EventStream
from gateway.generation.answer_reader import AnswerReader, Reading
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest, PromptSpec
from gateway.http.sse import named_event
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.protocol.anthropic_errors import anthropic_error
from gateway.protocol.errors import ApiError
from gateway.protocol.messages import (
    AnswerBlock,
    MessageObject,
    MessagesRequest,
    MessagesUsage,
    ThinkingBlock,
    ToolUseBlock,
)
from gateway.protocol.response import ResponseHead
from gateway.tools.call_reader import CallPiece, Pieces


class MessagesAnswer(Answer[MessagesRequest]):
    id_prefix = "msg"
    prompt_param = "messages"

    def __init__(self, model: ServedModel, request: MessagesRequest, name: str, prepared: PreparedRequest) -> None:
        super().__init__(model, request, name, prepared)
        self.head = dataclasses.replace(self.head, id=f"msg_{secrets.token_hex(12)}")

    def response(self, texts: Sequence[str]) -> MessageObject:
        choice, pieces = self.prepared.choices[0], self.prepared.reading.read(texts[0])
        thinking = [ThinkingBlock(pieces.reasoning)] if pieces.reasoning else []
        text = [AnswerBlock(pieces.content)] if pieces.content else []
        return MessageObject(
            id=self.head.id,
            model=self.head.model,
            content=[*thinking, *text, *map(_block, pieces.calls)],
            stop_reason=_stop_reason(choice, len(pieces.calls)),
            stop_sequence=choice.stop_string,
            usage=_usage(self.prepared),
        )

    def chunks(self) -> EventStream:
        return MessagesEvents(self.head, self.prepared, self.prepared.reading.reader())

    @classmethod
    async def _prompt_spec(cls, model: ServedModel, request: MessagesRequest, asker: Asker) -> PromptSpec:
        prompt = await chat_prompt(model, request, asker)
        reading = Reading.of(model, request, prompt)
        return PromptSpec(
            prompt_param=cls.prompt_param,
            prompts=[prompt],
            max_tokens=request.max_tokens,
            num_logprobs=None,
            grammar=reading.grammar(request, "output_config.format"),
            shows_special_tokens=reading.shows_special_tokens,
            reading=reading,
        )


class MessagesEvents(EventStream):
    """message_start, blocks of thinking, text and calls as they grow, message_delta with its end, message_stop."""

    def __init__(self, head: ResponseHead, prepared: PreparedRequest, reader: AnswerReader | None) -> None:
        """reader: None: all is text."""
        self._head = head
        self._prepared = prepared
        self._reader = reader
        self._has_begun = False
        self._num_blocks = 0  # that were begun
        self._open_block = ""  # the type of the one that grows

    def piece(self, choice: Choice, text: str) -> bytes:
        pieces = Pieces(text) if self._reader is None else self._reader.feed(text, is_end=choice.is_finished)
        events = [] if self._has_begun else [self._opening()]
        if pieces.reasoning:
            if self._open_block != "thinking":
                events.append(self._begin(ThinkingBlock("")))
            events.append(self._delta({"type": "thinking_delta", "thinking": pieces.reasoning}))
        if pieces.content:
            if self._open_block != "text":
                events.append(self._begin(AnswerBlock("")))
            events.append(self._delta({"type": "text_delta", "text": pieces.content}))
        for call in pieces.calls:
            if call.name is not None:
                events.append(self._begin(ToolUseBlock(call.id or "", call.name, {})))
            if call.arguments:
                events.append(self._delta({"type": "input_json_delta", "partial_json": call.arguments}))
        return b"".join(events)

    def end(self) -> bytes:
        choice, num_calls = self._prepared.choices[0], self._reader.num_calls if self._reader is not None else 0
        delta = {"stop_reason": _stop_reason(choice, num_calls), "stop_sequence": choice.stop_string}
        last = self._end_block(), _event("message_delta", delta=delta, usage=_usage(self._prepared))
        return b"".join((*last, _event("message_stop")))

    def failure(self, error: ApiError) -> bytes:
        return named_event("error", anthropic_error(error))

    def _opening(self) -> bytes:
        self._has_begun = True
        message = MessageObject(
            id=self._head.id,
            model=self._head.model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=msgspec.structs.replace(_usage(self._prepared), output_tokens=0),  # none has been told yet
        )
        return _event("message_start", message=message)

    def _begin(self, block: ThinkingBlock | AnswerBlock | ToolUseBlock) -> bytes:
        ended = self._end_block()
        self._open_block = str(block.__struct_config__.tag)
        self._num_blocks += 1
        return ended + _event("content_block_start", index=self._num_blocks - 1, content_block=block)

    def _delta(self, delta: dict[str, str]) -> bytes:
        return _event("content_block_delta", index=self._num_blocks - 1, delta=delta)

    def _end_block(self) -> bytes:
        is_open, self._open_block = bool(self._open_block), ""
        return _event("content_block_stop", index=self._num_blocks - 1) if is_open else b""


def _block(call: CallPiece) -> ToolUseBlock:
    try:
        arguments = msgspec.json.decode(call.arguments or "{}")
    except msgspec.DecodeError:  # cut
        arguments = {}
    return ToolUseBlock(call.id or "", call.name or "", arguments)


def _event(kind: str, **fields: Any) -> bytes:
    return named_event(kind, msgspec.json.encode({"type": kind, **fields}))


def _stop_reason(choice: Choice, num_calls: int) -> str:
    if choice.finish_reason == "length":
        return "max_tokens"
    if num_calls:
        return "tool_use"
    return "end_turn" if choice.stop_string is None else "stop_sequence"


def _usage(prepared: PreparedRequest) -> MessagesUsage:
    usage = prepared.usage()
    cached = usage.prompt_tokens_details.cached_tokens
    return MessagesUsage(usage.prompt_tokens - cached, usage.completion_tokens, cached)

"""The typed events of a streamed response: created; its thinking, message and calls as they grow; completed."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from gateway.answers.event_stream import EventStream
from gateway.answers.logprobs import chat_logprobs
from gateway.answers.responses.growing_response import GrowingResponse
from gateway.generation.answer_reader import AnswerReader
from gateway.generation.choice import Choice
from gateway.http.sse import named_event
from gateway.model.tokenize import Tokenizer
from gateway.protocol.errors import ApiError
from gateway.protocol.responses import (
    FunctionCallItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
)
from gateway.tools.call_reader import CallPiece, Pieces


class ResponsesEvents(EventStream):
    def __init__(
        self, response: GrowingResponse, tokenizer: Tokenizer | None, as_ids: bool, reader: AnswerReader | None
    ) -> None:
        """tokenizer: to show log-probabilities with; None: none are shown. reader: None: all is text."""
        self._response = response
        self._tokenizer = tokenizer
        self._as_ids = as_ids
        self._reader = reader
        self._num_events = 0
        self._has_message = False
        self._num_calls_before = 0  # the message
        self._texts: list[str] = []
        self._thoughts: list[str] = []
        self._has_ended_thinking = False
        self._logprobs: list[msgspec.Raw] = []
        self._calls: list[FunctionCallItem] = []

    def piece(self, choice: Choice, text: str) -> bytes:
        events = [] if self._num_events else [self._opening()]
        entries = choice.take_logprobs() if self._tokenizer is not None else []
        logprobs = chat_logprobs(self._tokenizer, entries, self._as_ids).content if self._tokenizer is not None else []
        self._logprobs += logprobs
        pieces = Pieces(text) if self._reader is None else self._reader.feed(text, is_end=choice.is_finished)
        if pieces.reasoning:
            events += self._think(pieces.reasoning)
        if pieces.content or pieces.calls:
            events.append(self._end_thinking())
        if pieces.content:
            self._texts.append(pieces.content)
            events.append(self._begin_message())
            delta: dict[str, Any] = {"delta": pieces.content, "logprobs": logprobs}
            events.append(self._event("response.output_text.delta", **self._place, **delta))
        events += map(self._call, pieces.calls)
        return b"".join(events)

    def end(self) -> bytes:
        status = self._response.end_status
        is_cut_thought = status == "incomplete" and bool(self._thoughts) and not (self._has_message or self._calls)
        events = [self._end_thinking(status if is_cut_thought else "completed")]
        if not self._calls and not is_cut_thought:
            events.append(self._begin_message())
        part = OutputText("".join(self._texts), logprobs=self._logprobs)
        calls = [msgspec.structs.replace(call, status=status) for call in self._calls]
        whole = self._response.finished(part, calls, "".join(self._thoughts), self._num_calls_before)
        if self._has_message:
            place = self._place
            events += (
                self._event("response.output_text.done", **place, text=part.text, logprobs=self._logprobs),
                self._event("response.content_part.done", **place, part=part),
            )
        for index, item in enumerate(whole.output):
            if isinstance(item, ReasoningItem):
                continue  # it ended before
            if isinstance(item, FunctionCallItem):
                done = {"item_id": item.id, "output_index": index, "name": item.name, "arguments": item.arguments}
                events.append(self._event("response.function_call_arguments.done", **done))
            events.append(self._event("response.output_item.done", output_index=index, item=item))
        return b"".join((*events, self._event(f"response.{whole.status}", response=whole)))

    def failure(self, error: ApiError) -> bytes:
        opening = b"" if self._num_events else self._opening()
        reason = ResponseFailure(error.code or error.type, error.message)
        return opening + self._event("response.failed", response=self._response.described("failed", error=reason))

    def _opening(self) -> bytes:
        begun = self._response.described("in_progress")
        created = self._event("response.created", response=begun)
        return created + self._event("response.in_progress", response=begun)

    @property
    def _place(self) -> dict[str, Any]:
        """Of the message's text."""
        index = bool(self._thoughts) + self._num_calls_before
        return {"item_id": self._response.message_id, "output_index": index, "content_index": 0}

    @property
    def _thinking_place(self) -> dict[str, Any]:
        return {"item_id": self._response.reasoning_id, "output_index": 0, "content_index": 0}

    def _think(self, text: str) -> list[bytes]:
        events, place = [], self._thinking_place
        if not self._thoughts:
            item = ReasoningItem(self._response.reasoning_id, "in_progress", [])
            events.append(self._event("response.output_item.added", output_index=0, item=item))
            events.append(self._event("response.content_part.added", **place, part=ReasoningText("")))
        self._thoughts.append(text)
        return [*events, self._event("response.reasoning_text.delta", **place, delta=text)]

    def _end_thinking(self, status: str = "completed") -> bytes:
        """Once, if it began."""
        if not self._thoughts or self._has_ended_thinking:
            return b""
        self._has_ended_thinking = True
        place, text = self._thinking_place, "".join(self._thoughts)
        events = (
            self._event("response.reasoning_text.done", **place, text=text),
            self._event("response.content_part.done", **place, part=ReasoningText(text)),
            self._event("response.output_item.done", output_index=0, item=self._response.reasoning_item(text, status)),
        )
        return b"".join(events)

    def _begin_message(self) -> bytes:
        if self._has_message:
            return b""
        self._has_message, self._num_calls_before = True, len(self._calls)
        item = OutputMessage(self._response.message_id, "in_progress", [])
        added = self._event("response.output_item.added", output_index=self._place["output_index"], item=item)
        return added + self._event("response.content_part.added", **self._place, part=OutputText(""))

    def _call(self, piece: CallPiece) -> bytes:
        events = []
        if piece.name is not None:
            item = msgspec.structs.replace(call_item(piece, "in_progress"), arguments="")
            self._calls.append(item)
            events.append(self._event("response.output_item.added", output_index=self._last_index, item=item))
        last = self._calls[-1]
        self._calls[-1] = msgspec.structs.replace(last, arguments=last.arguments + piece.arguments)
        if piece.arguments:
            place: dict[str, Any] = {"item_id": last.id, "output_index": self._last_index}
            events.append(self._event("response.function_call_arguments.delta", **place, delta=piece.arguments))
        return b"".join(events)

    @property
    def _last_index(self) -> int:
        """Of the last call among the output's items."""
        is_behind = self._has_message and len(self._calls) > self._num_calls_before
        return bool(self._thoughts) + is_behind + len(self._calls) - 1

    def _event(self, kind: str, **fields: Any) -> bytes:
        data = {"type": kind, "sequence_number": self._num_events, **fields}
        self._num_events += 1
        return named_event(kind, msgspec.json.encode(data))


def call_item(call: CallPiece, status: str) -> FunctionCallItem:
    """REQUIRES: the call's first piece."""
    return FunctionCallItem(f"fc_{secrets.token_hex(24)}", call.id or "", call.name or "", call.arguments, status)

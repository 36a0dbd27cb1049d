"""The chunks of a streamed chat completion that is read: thinking and calls as they are written, content as ever."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gateway.answers.chat_chunks import ChatChunks
from gateway.answers.logprobs import chat_logprobs
from gateway.generation.answer_reader import AnswerReader
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.model.tokenize import Tokenizer
from gateway.protocol.chat import ChatChunkChoice, ChatDelta, ChatRequest
from gateway.protocol.output.tools import FunctionDelta, ToolCallDelta
from gateway.protocol.response import ResponseHead
from gateway.tools.call_reader import CallPiece


class ReadChunks(ChatChunks):
    def __init__(
        self,
        head: ResponseHead,
        request: ChatRequest,
        prepared: PreparedRequest,
        tokenizer: Tokenizer,
        readers: Sequence[AnswerReader],
    ) -> None:
        """readers: of each choice."""
        super().__init__(head, request, prepared, tokenizer)
        self._readers = readers
        self._has_reasoning = request.include_reasoning is not False
        self._has_begun = [False] * len(prepared.choices)

    def piece(self, choice: Choice, text: str) -> bytes:
        index, is_end = choice.index, choice.is_finished
        opening = b"" if self._has_begun[index] else self._opening(choice)
        self._has_begun[index] = True
        pieces = self._readers[index].feed(text, is_end=is_end)
        self._num_shown[index] = choice.num_tokens
        reasoning = pieces.reasoning if pieces.reasoning and self._has_reasoning else UNSET
        delta = ChatDelta(
            content=pieces.content or UNSET,
            reasoning_content=reasoning,
            reasoning=reasoning,
            tool_calls=[_call_delta(call) for call in pieces.calls] or UNSET,
        )
        return opening + self._delta_chunk(choice, delta) + (self._closing(choice) if is_end else b"")

    def _delta_chunk(self, choice: Choice, delta: ChatDelta) -> bytes:
        """Log-probabilities and ids go with what their tokens have told, which may be nothing."""
        entries = choice.take_logprobs() if self._has_logprobs else []
        token_ids = choice.take_token_ids() if self._has_token_ids else []
        if not (entries or token_ids) and delta == ChatDelta():
            return b""
        logprobs = chat_logprobs(self._tokenizer, entries, self._as_ids) if self._has_logprobs else None
        shown_ids = token_ids if self._has_token_ids else UNSET
        return self._event([ChatChunkChoice(choice.index, delta, logprobs, None, shown_ids)])

    def _closing(self, choice: Choice) -> bytes:
        reason = finish_reason(choice.finish_reason, self._readers[choice.index].num_calls)
        return self._event([ChatChunkChoice(choice.index, ChatDelta(), finish_reason=reason)])


def finish_reason(reason: str | None, num_calls: int) -> str | None:
    """Of an answer with so many calls."""
    return "tool_calls" if num_calls and reason == "stop" else reason


def _call_delta(call: CallPiece) -> ToolCallDelta:
    if call.name is None:
        return ToolCallDelta(call.index, FunctionDelta(arguments=call.arguments))
    return ToolCallDelta(call.index, FunctionDelta(call.name, call.arguments), call.id or "", "function")

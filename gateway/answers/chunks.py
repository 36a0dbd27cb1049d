"""A generation's pieces as chunks of a stream; chat_chunks.py and completion_chunks.py fill in the shapes."""

from __future__ import annotations

from abc import abstractmethod

import orjson

from gateway.answers.event_stream import EventStream
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.http.sse import DONE
from gateway.model.tokenize import Tokenizer
from gateway.protocol.generation import GenerationRequest
from gateway.protocol.response import ResponseHead, Usage

MARK = "\x00"  # stands for the text while a frame is made
_MARK_JSON = orjson.dumps(MARK)


class Chunks(EventStream):
    """Most chunks are a few characters of text, so the bytes around the text are made once per choice."""

    def __init__(
        self,
        head: ResponseHead,
        request: GenerationRequest,
        prepared: PreparedRequest,
        tokenizer: Tokenizer,
        has_logprobs: bool,
    ) -> None:
        self._head = head
        self._prepared = prepared
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._has_usage = request.includes_usage
        self._has_running_usage = request.has_continuous_usage
        self._has_token_ids = bool(request.return_token_ids)
        self._is_plain = not (self._has_running_usage or self._has_logprobs or self._has_token_ids)
        self._frames: list[tuple[bytes, bytes] | None] = [None] * len(prepared.choices)
        self._num_shown = [0] * len(prepared.choices)  # tokens of what was sent, for running usage

    def piece(self, choice: Choice, text: str) -> bytes:
        """A chunk also where a token is no text yet, half a character: who counts chunks, as load generators do, would
        see one token missing and the next one late."""
        frame = self._frames[choice.index]
        if frame is None:
            prefix, suffix = self._text_chunk(choice.index, MARK).split(_MARK_JSON)
            self._frames[choice.index] = (prefix, suffix)
            return self._opening(choice) + self.piece(choice, text)
        is_over = choice.finish_reason is not None
        if not self._is_plain:
            self._num_shown[choice.index] = choice.num_tokens
            chunk = self._rich_chunk(choice, text)
        elif text or not is_over:
            chunk = b"%b%b%b" % (frame[0], orjson.dumps(text), frame[1])
        else:
            chunk = b""
        return chunk + self._closing(choice) if is_over else chunk

    def end(self) -> bytes:
        return self._usage_chunk(self._prepared.usage()) + DONE if self._has_usage else DONE

    def _usage_so_far(self) -> Usage | None:
        """Of a chunk that is not the usage chunk: up to the chunk itself, whatever has arrived for later ones."""
        return self._prepared.usage(sum(self._num_shown)) if self._has_running_usage else None

    @abstractmethod
    def _text_chunk(self, index: int, text: str) -> bytes: ...

    @abstractmethod
    def _rich_chunk(self, choice: Choice, text: str) -> bytes:
        """Text with log-probabilities, token ids or usage; empty if the answer is over and there are none."""

    @abstractmethod
    def _opening(self, choice: Choice) -> bytes:
        """What comes before a choice's first text."""

    @abstractmethod
    def _closing(self, choice: Choice) -> bytes:
        """The finish reason."""

    @abstractmethod
    def _usage_chunk(self, usage: Usage) -> bytes: ...

"""A generation's pieces as chunks of a stream; chat_chunks.py and completion_chunks.py fill in the shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod

import orjson

from gateway.choice import Choice
from gateway.generation import Generation
from gateway.protocol.generation import GenerationRequest
from gateway.protocol.response import ResponseHead, Usage
from gateway.sse import DONE
from gateway.tokenize import Tokenizer

MARK = "\x00"  # stands for the text while a frame is made
_MARK_JSON = orjson.dumps(MARK)


class Chunks(ABC):
    """Most chunks are a few characters of text, so the bytes around the text are made once per choice."""

    def __init__(
        self,
        head: ResponseHead,
        request: GenerationRequest,
        generation: Generation,
        tokenizer: Tokenizer,
        has_logprobs: bool,
    ) -> None:
        self._head = head
        self._generation = generation
        self._tokenizer = tokenizer
        self._has_logprobs = has_logprobs
        self._has_usage = request.includes_usage
        self._has_running_usage = request.has_continuous_usage
        self._has_token_ids = bool(request.return_token_ids)
        self._is_plain = not (self._has_running_usage or self._has_logprobs or self._has_token_ids)
        self._frames: list[tuple[bytes, bytes] | None] = [None] * len(generation.choices)

    def piece(self, choice: Choice, text: str) -> bytes:
        """What a choice's new text, and its end, look like; empty if there is nothing to show."""
        frame = self._frames[choice.index]
        if frame is None:
            prefix, suffix = self._text_chunk(choice.index, MARK).split(_MARK_JSON)
            self._frames[choice.index] = (prefix, suffix)
            return self._opening(choice) + self.piece(choice, text)
        if self._is_plain:
            chunk = b"%b%b%b" % (frame[0], orjson.dumps(text), frame[1]) if text else b""
        else:
            chunk = self._rich_chunk(choice, text)
        return chunk if choice.finish_reason is None else chunk + self._closing(choice)

    def end(self) -> bytes:
        return self._usage_chunk(self._generation.usage()) + DONE if self._has_usage else DONE

    def _usage_so_far(self) -> Usage | None:
        """Of a chunk that is not the usage chunk."""
        return self._generation.usage() if self._has_running_usage else None

    @abstractmethod
    def _text_chunk(self, index: int, text: str) -> bytes: ...

    @abstractmethod
    def _rich_chunk(self, choice: Choice, text: str) -> bytes:
        """Text with log-probabilities, token ids or usage; empty if there are none."""

    @abstractmethod
    def _opening(self, choice: Choice) -> bytes:
        """What comes before a choice's first text."""

    @abstractmethod
    def _closing(self, choice: Choice) -> bytes:
        """The finish reason."""

    @abstractmethod
    def _usage_chunk(self, usage: Usage) -> bytes: ...

"""Chunks of a stream into the answer that would have come without streaming."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from ._types import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    Completion,
    CompletionChoice,
    CompletionChunk,
    CompletionLogprobs,
    Message,
    Timings,
    Usage,
)

Chunk = TypeVar("Chunk", bound=ChatChunk | CompletionChunk)
Result = TypeVar("Result", bound=ChatCompletion | Completion)


@dataclass(slots=True)
class _Choice:
    """One choice while it grows."""

    index: int
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class Accumulator(ABC, Generic[Chunk, Result]):
    def __init__(self) -> None:
        self._choices: dict[int, _Choice] = {}
        self._head: dict[str, Any] = {}
        self.usage: Usage | None = None

    @property
    def num_choices(self) -> int:
        return len(self._choices)

    def add(self, chunk: Chunk) -> bool:
        """True if the chunk brought text."""
        if not self._head:
            self._head = {name: getattr(chunk, name) for name in ("id", "created", "model")}
        self._head["service_tier"] = chunk.service_tier or self._head.get("service_tier")
        self.usage = chunk.usage or self.usage
        for part in chunk.choices:
            choice = self._choices.setdefault(part.index, _Choice(part.index))
            choice.texts.append(part.text)
            if part.logprobs is not None:
                choice.logprobs.append(part.logprobs)
            choice.finish_reason = part.finish_reason or choice.finish_reason
            if part.token_ids is not None:
                choice.token_ids = choice.token_ids or []
                choice.token_ids += part.token_ids
        return any(part.text for part in chunk.choices)

    def result(self, request_id: str | None, timings: Timings) -> Result:
        """The answer as far as it has come."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        return self._build(choices, {**self._head, "usage": self.usage, "request_id": request_id, "timings": timings})

    @abstractmethod
    def _build(self, choices: list[_Choice], rest: dict[str, Any]) -> Result: ...


class ChatAccumulator(Accumulator[ChatChunk, ChatCompletion]):
    def _build(self, choices: list[_Choice], rest: dict[str, Any]) -> ChatCompletion:
        return ChatCompletion(choices=tuple(map(_chat_choice, choices)), **rest)


class CompletionAccumulator(Accumulator[CompletionChunk, Completion]):
    def _build(self, choices: list[_Choice], rest: dict[str, Any]) -> Completion:
        return Completion(choices=tuple(map(_completion_choice, choices)), **rest)


def _chat_choice(choice: _Choice) -> ChatChoice:
    return ChatChoice(
        index=choice.index,
        message=Message("assistant", "".join(choice.texts)),
        finish_reason=choice.finish_reason,
        logprobs=ChatLogprobs(content=_joined(choice.logprobs, "content")) if choice.logprobs else None,
        token_ids=None if choice.token_ids is None else tuple(choice.token_ids),
    )


def _completion_choice(choice: _Choice) -> CompletionChoice:
    return CompletionChoice(
        index=choice.index,
        text="".join(choice.texts),
        finish_reason=choice.finish_reason,
        logprobs=_joined_logprobs(choice.logprobs) if choice.logprobs else None,
        token_ids=None if choice.token_ids is None else tuple(choice.token_ids),
    )


def _joined_logprobs(parts: Iterable[CompletionLogprobs]) -> CompletionLogprobs:
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return CompletionLogprobs(**{name: _joined(parts, name) for name in names})


def _joined(parts: Iterable[Any], name: str) -> tuple[Any, ...]:
    return tuple(item for part in parts for item in getattr(part, name))

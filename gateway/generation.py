"""The choices of one HTTP request on the engine, from admission to their last token."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, ItemsView
from types import TracebackType
from typing import Self

from gateway.admission import Refusal
from gateway.choice import Choice
from gateway.engine_client import EngineDeadError
from gateway.prepare import Prepared
from gateway.protocol.errors import (
    ApiError,
    DeadlineError,
    QueueFullError,
    ResourceUnavailableError,
    UnavailableError,
    from_engine,
)
from gateway.protocol.response import Usage
from gateway.services import Services
from gateway.session_table import Notice
from schedcore.types import FinishReason, RequestClass, TokenDelta

_ERROR, _ABORT = FinishReason.ERROR, FinishReason.ABORT  # looked up once: this runs per token


class Generation:
    """A context manager: entering asks admission and submits, leaving ends whatever is still open.

    Choice number i is the engine's request number prepared.requests[0].request_id + i.
    """

    def __init__(
        self,
        services: Services,
        prepared: Prepared,
        arrived_at: float,
    ) -> None:
        self.profile = prepared.profile
        self.choices = prepared.choices
        self.prompts = prepared.prompts
        self.arrived_at = arrived_at
        self.first_token_at: float | None = None
        self._services = services
        self._prepared = prepared
        self._requests = prepared.requests
        self._first_id = prepared.requests[0].request_id
        self._num_unfinished = len(prepared.choices)
        self._admission = services.admissions[self.profile.request_class]
        self._metrics = services.metrics.of_class[self.profile.request_class]
        self._notice: Notice | None = None  # what an advisory announced, until the first token
        self._resources = contextlib.ExitStack()

    @property
    def seconds_left(self) -> float | None:
        """Of the time that a request may take."""
        timeout_ms = self._timeout_ms
        return max(0.0, self.arrived_at + timeout_ms / 1e3 - self._services.clock()) if timeout_ms else None

    @property
    def _timeout_ms(self) -> float:
        config = self._services.config
        is_flex = self.profile.request_class is RequestClass.OFFLINE
        return config.flex_timeout_ms if is_flex else config.request_timeout_ms

    @property
    def is_done(self) -> bool:
        return self._num_unfinished == 0

    @property
    def num_prompt_tokens(self) -> int:
        return self._prepared.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return self._prepared.num_output_tokens

    def usage(self) -> Usage:
        """So far."""
        return self._prepared.usage()

    def __enter__(self) -> Self:
        """Raises QueueFullError or UnavailableError."""
        self._admit()
        try:
            self._stream = self._resources.enter_context(self._services.engine.stream(self._requests))
        except EngineDeadError as error:
            self._admission.leave(self._ticket, self._services.clock())
            raise UnavailableError(str(error), code=error.code) from None
        self._notice = self._services.advisor.take_notice(self.profile, self.arrived_at)
        self._services.open.add(self)
        self._resources.callback(self._services.open.remove, self)
        self._limit_time()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._resources.close()
        self._admission.leave(self._ticket, self._services.clock())
        for choice in self.choices:
            if choice.finish_reason is None:
                self._metrics.num_finished["error" if isinstance(e, ApiError) else "abort"] += 1

    def fail(self, error: ApiError) -> None:
        """The reader gets this instead of more tokens."""
        self._stream.fail(error)

    async def receive(self) -> list[TokenDelta]:
        """At least one delta; none when every request has had its last. Raises ApiError if the generation failed."""
        return await self._stream.receive()

    async def feed(self, consumer: Callable[[list[TokenDelta]], bool]) -> None:
        """Instead of receive(): `consumer` gets what arrives at once, until it returns True or the generation is done.

        Raises ApiError if the generation failed, and what the consumer raises.
        """
        await self._stream.feed(consumer)

    def absorb(self, deltas: list[TokenDelta]) -> ItemsView[Choice, str]:
        """Each choice that got tokens, once, with the text they complete (possibly none)."""
        now = self._services.clock()
        pieces: dict[Choice, str] = {}
        for delta in deltas:
            choice = self.choices[delta.request_id - self._first_id]
            if choice.finish_reason is not None:
                continue
            if delta.finish_reason is _ERROR or delta.finish_reason is _ABORT:
                self.fail(from_engine(delta.error))
                break
            text = self._feed(choice, delta, now)
            pieces[choice] = pieces[choice] + text if choice in pieces else text
        return pieces.items()

    def _admit(self) -> None:
        num_tokens = sum(len(request.prompt_token_ids) for request in self._requests)
        answer = self._admission.admit(len(self._requests), num_tokens)
        if isinstance(answer, Refusal):
            self._metrics.num_refused += 1
            is_flex = self.profile.request_class is RequestClass.OFFLINE
            kind = ResourceUnavailableError if is_flex else QueueFullError
            raise kind(answer.reason, retry_after_seconds=answer.retry_after_seconds)
        self._ticket = answer

    def _limit_time(self) -> None:
        if (seconds := self.seconds_left) is not None:
            limit = self._timeout_ms / 1e3
            error = DeadlineError(f"The request took longer than {limit:g} seconds.")
            timer = asyncio.get_running_loop().call_later(seconds, self.fail, error)
            self._resources.callback(timer.cancel)

    def _feed(self, choice: Choice, delta: TokenDelta, now: float) -> str:
        num_before = choice.num_tokens
        text = choice.feed(delta)
        self._record(choice, choice.num_tokens - num_before, now)
        if choice.finish_reason is not None:
            self._finish(choice, delta.request_id, now)
        return text

    def _start(self, now: float) -> None:
        self.first_token_at = now
        self._admission.leave(self._ticket, now)
        self._metrics.ttft.observe(now - self.arrived_at)
        self._metrics.num_prompt_tokens += self.num_prompt_tokens
        for prompt in self.prompts:
            self._metrics.prompt_lengths.observe(len(prompt))

    def _record(self, choice: Choice, num_tokens: int, now: float) -> None:
        if self.first_token_at is None:
            self._start(now)
        metrics = self._metrics
        metrics.num_output_tokens += num_tokens
        if choice.last_token_at is None:
            choice.first_token_at = now
            metrics.num_cached_tokens += choice.num_cached_tokens
            self._served(choice)
        elif num_tokens:
            metrics.itl.observe((now - choice.last_token_at) / num_tokens, num_tokens)
        choice.last_token_at = now

    def _served(self, choice: Choice) -> None:
        """The first token of a choice; the first of all tells whether an advisory was worth its while."""
        if self._notice is not None:
            self._services.advisor.served(self._notice, choice.num_cached_tokens)
            self._notice = None

    def _finish(self, choice: Choice, request_id: int, now: float) -> None:
        self._num_unfinished -= 1
        if choice.stopped_by_gateway:
            self._stream.end(request_id)
        metrics = self._metrics
        metrics.num_finished[choice.finish_reason or ""] += 1
        metrics.e2e.observe(now - self.arrived_at)
        metrics.output_lengths.observe(choice.num_tokens)
        if choice.num_tokens > 1 and choice.first_token_at is not None:
            metrics.tpot.observe((now - choice.first_token_at) / (choice.num_tokens - 1))

    async def texts(self) -> list[str]:
        """Runs to the end; the whole text of each choice. Raises ApiError if the generation failed."""
        parts: list[list[str]] = [[] for _ in self.choices]

        def collect(deltas: list[TokenDelta]) -> bool:
            for choice, text in self.absorb(deltas):
                parts[choice.index].append(text)
            return self.is_done

        await self.feed(collect)
        return ["".join(texts) for texts in parts]

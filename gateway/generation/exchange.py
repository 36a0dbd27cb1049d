"""A request's choices on the engine: the one loop from deltas to text, for people and for rows of batches."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Sequence
from typing import Protocol

from gateway.engine.delta_stream import DeltaStream
from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.protocol.errors import ApiError, from_engine
from schedcore.api.types import FinishReason, TokenDelta, TokenLogprobs

_ERROR, _ABORT = FinishReason.ERROR, FinishReason.ABORT  # looked up once: this runs per token


class Observer(Protocol):
    """Who wants to know how it goes. `now` is on the gateway's clock."""

    def received(self, choice: Choice, num_tokens: int, now: float) -> None:
        """That many tokens more; the first call for a choice is its first token."""

    def finished(self, choice: Choice, now: float) -> None: ...


class Unobserved:
    """Nobody wants to know."""

    def received(self, choice: Choice, num_tokens: int, now: float) -> None:
        pass

    def finished(self, choice: Choice, now: float) -> None:
        pass


class Exchange:
    """Choice number i is the engine's request number prepared.requests[0].request_id + i.

    Whoever opened the stream closes it.
    """

    def __init__(
        self, stream: DeltaStream, prepared: PreparedRequest, clock: Callable[[], float], observer: Observer
    ) -> None:
        """stream: of the prepared requests."""
        self._stream = stream
        self._prepared = prepared
        self._clock = clock
        self._observer = observer
        self._choices = prepared.choices
        self._first_id = prepared.requests[0].request_id
        self._num_unfinished = len(prepared.choices)

    @property
    def is_done(self) -> bool:
        return self._num_unfinished == 0

    @property
    def has_begun(self) -> bool:
        """Whether there are tokens, taken or not."""
        return self._stream.num_arrived + self._prepared.num_output_tokens > 0

    def fail(self, error: ApiError) -> None:
        """The reader gets this instead of more tokens."""
        self._stream.fail(error)

    async def receive(self) -> list[TokenDelta]:
        """At least one delta; none when every request has had its last. Raises ApiError if the exchange failed."""
        return await self._stream.receive()

    def take_backlog(self, num_deltas: int) -> list[TokenDelta]:
        """The first of what has arrived, if that is more; else receive() and drain_to() have it."""
        return self._stream.take(num_deltas) if self._stream.num_arrived > num_deltas else []

    async def drain_to(self, consumer: Callable[[list[TokenDelta]], bool]) -> None:
        """Instead of receive(): `consumer` gets what arrives at once, until it returns True or the exchange is done.

        Raises ApiError if the exchange failed, and what the consumer raises.
        """
        await self._stream.drain_to(consumer)

    def absorb(self, deltas: Sequence[TokenDelta]) -> ItemsView[Choice, str]:
        """Each choice that got tokens, once, with the text they complete (possibly none)."""
        now = self._clock()
        pieces: dict[Choice, str] = {}
        for delta in deltas:
            choice = self._choices[delta.request_id - self._first_id]
            if choice.finish_reason is not None:
                continue
            if delta.finish_reason is _ERROR or delta.finish_reason is _ABORT:
                self.fail(from_engine(delta.error))
                break
            text = self._decode(choice, delta, now)
            pieces[choice] = pieces[choice] + text if choice in pieces else text
        return pieces.items()

    async def texts(self, *, is_patient: bool = False) -> list[str]:
        """Runs to the end; the whole text of each choice. Raises ApiError if the exchange failed.

        is_patient: tokens pile up until the last one is there and become text at once, except where stop strings
        have to be looked for.
        """
        parts: list[list[str]] = [[] for _ in self._choices]

        def collect(deltas: Sequence[TokenDelta]) -> bool:
            for choice, text in self.absorb(deltas):
                parts[choice.index].append(text)
            return self.is_done

        if is_patient and not any(choice.scans_text for choice in self._choices):
            collect(_joined(await self._stream.receive_rest()))
        if not self.is_done:
            await self.drain_to(collect)
        return ["".join(texts) for texts in parts]

    def _decode(self, choice: Choice, delta: TokenDelta, now: float) -> str:
        num_before = choice.num_tokens
        text = choice.decode(delta)
        self._observer.received(choice, choice.num_tokens - num_before, now)
        if choice.finish_reason is not None:
            self._num_unfinished -= 1
            if choice.stopped_by_gateway:
                self._stream.end(delta.request_id)
            self._observer.finished(choice, now)
        return text


def _joined(deltas: Sequence[TokenDelta]) -> list[TokenDelta]:
    """All that was said of each request, as if in one step; of a failure, the first that was said."""
    of_request: dict[int, list[TokenDelta]] = {}
    for delta in deltas:
        if delta.finish_reason is _ERROR or delta.finish_reason is _ABORT:
            return [delta]
        of_request.setdefault(delta.request_id, []).append(delta)
    return [_one(parts) for parts in of_request.values()]


def _one(deltas: Sequence[TokenDelta]) -> TokenDelta:
    first, last = deltas[0], deltas[-1]
    logprobs: list[TokenLogprobs] = [entry for delta in deltas for entry in delta.logprobs or ()]
    return TokenDelta(
        last.request_id,
        [token_id for delta in deltas for token_id in delta.token_ids],
        last.finish_reason,
        last.stop_token_id,
        first.num_cached_tokens,
        logprobs or None,
        first.prompt_logprobs,
        vector=last.vector,
    )

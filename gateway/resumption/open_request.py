"""A request that has not ended, and what it takes to go on with it on another engine."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import msgspec

from gateway.engine.delta_stream import DeltaStream
from schedcore.api.types import EngineError, EngineRequest


class OpenRequest:
    """Its tokens so far take four bytes each, `max_tokens` of them at most."""

    __slots__ = (
        "_arrived_at",
        "_last_token_at",
        "_tokens",
        "engine_stream",
        "failure",
        "is_proven",
        "is_suspect",
        "lost_at",
        "not_before",
        "num_deaths",
        "request",
        "stream",
        "was_proven",
    )

    def __init__(self, request: EngineRequest, stream: DeltaStream, engine_stream: DeltaStream, now: float) -> None:
        """stream: its reader's. engine_stream: where its tokens come from. now: when it was submitted."""
        self.request = request  # as it was submitted first
        self.stream = stream
        self.engine_stream: DeltaStream | None = engine_stream  # None: no engine has it
        self.is_proven = False  # the engine that has it, or had it last, has given something of it
        self.was_proven = False  # so it was when an engine died last
        self.is_suspect = False  # it goes on alone, until it is proven
        self.num_deaths = 0  # of engines that had it
        self.failure: EngineError | None = None  # what its reader is told if nobody goes on with it
        self.lost_at = 0.0  # when the last of them died
        self.not_before = 0.0  # an engine that is full has asked for time
        self._tokens = array("i")
        self._arrived_at = now - request.age_ms / 1e3
        self._last_token_at = now

    @property
    def num_tokens(self) -> int:
        """That an engine has to compute or find: the prompt and the output so far."""
        return len(self.request.prompt_token_ids) + len(self._tokens)

    @property
    def order(self) -> tuple[bool, int, bool, int, float, int]:
        """In which they go on. Who had got nothing when the engine died is more likely to have killed it."""
        request = self.request
        place = int(request.request_class), not self.was_proven, request.priority
        return self.is_suspect, *place, self._arrived_at, request.request_id

    def note(self, token_ids: Sequence[int], now: float) -> None:
        self._tokens.extend(token_ids)
        self._last_token_at = now

    def rest(self, now: float) -> EngineRequest:
        """What is to be asked of another engine. Its prompt is what the user's was, and the output so far."""
        request, num = self.request, len(self._tokens)
        age_ms = (now - self._arrived_at) * 1e3
        if not num:
            return msgspec.structs.replace(request, age_ms=age_ms)
        return msgspec.structs.replace(
            request,
            prompt_token_ids=[*request.prompt_token_ids, *self._tokens],
            max_tokens=request.max_tokens - num,
            sampling=msgspec.structs.replace(request.sampling, num_prompt_logprobs=None),  # its reader has them
            num_prior_tokens=num,
            age_ms=age_ms,
            pause_ms=(now - self._last_token_at) * 1e3,
        )

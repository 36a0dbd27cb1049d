"""Yes or no, before any work is done: a bounded queue of requests without a first token. Time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass

_SMOOTHING = 0.2  # weight of the newest interval in the drain rate
_MAX_RETRY_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Refusal:
    reason: str
    retry_after_seconds: int


@dataclass(slots=True)
class Ticket:
    """An admitted request's place in the queue."""

    num_requests: int
    num_tokens: int
    is_waiting: bool = True


class Admission:
    """One queue; each class of traffic has its own, so that bulk work cannot refuse people.

    Invariant: num_requests and num_tokens are the sums over the tickets that are waiting.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self.num_requests = 0
        self.num_tokens = 0
        self._tokens_per_second = 0.0  # smoothed rate at which the queue drains
        self._drained_at: float | None = None

    def admit(self, num_requests: int, num_tokens: int) -> Ticket | Refusal:
        """An empty queue admits anything, so that nothing is refused for ever."""
        if self.num_requests:
            if self.num_requests + num_requests > self._max_requests:
                return self._refusal("requests", num_tokens)
            if self.num_tokens + num_tokens > self._max_tokens:
                return self._refusal("tokens", num_tokens)
        elif self._drained_at is not None:
            self._drained_at = None  # idle time says nothing about the rate
        self.num_requests += num_requests
        self.num_tokens += num_tokens
        return Ticket(num_requests, num_tokens)

    def leave(self, ticket: Ticket, now: float) -> None:
        """The request has its first token or has ended. Idempotent."""
        if not ticket.is_waiting:
            return
        ticket.is_waiting = False
        self.num_requests -= ticket.num_requests
        self.num_tokens -= ticket.num_tokens
        self._observe(ticket.num_tokens, now)

    def _observe(self, num_tokens: int, now: float) -> None:
        if self._drained_at is not None and now > self._drained_at:
            rate = num_tokens / (now - self._drained_at)
            weight = _SMOOTHING if self._tokens_per_second else 1.0
            self._tokens_per_second += weight * (rate - self._tokens_per_second)
        self._drained_at = now

    def _refusal(self, what: str, num_tokens: int) -> Refusal:
        """Retry when about half of the queue has drained: at once would meet the same queue."""
        reason = (
            f"The server's queue is full ({self.num_requests} requests, {self.num_tokens} tokens): too many {what}."
        )
        if self._tokens_per_second <= 0:
            return Refusal(reason, 1)
        seconds = math.ceil(0.5 * self.num_tokens / self._tokens_per_second)
        return Refusal(reason, min(max(1, seconds), _MAX_RETRY_SECONDS))

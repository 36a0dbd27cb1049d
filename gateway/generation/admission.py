"""Yes or no: a bounded queue of requests without a first token. Time is an argument.

Their number is asked first, before template and tokeniser; their tokens when these are known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    tenant: str = ""
    is_waiting: bool = True


@dataclass(slots=True)
class _Tenant:
    num_requests: int = 0
    num_tokens: int = 0


class Admission:
    """One queue; each class of traffic has its own, so that bulk work cannot refuse people.

    A tenant alone may fill it. When it is full, a tenant that would still be within its fair share of it, among those
    who wait, is admitted all the same: whoever has filled it keeps nobody out. So the queue holds less than twice its
    limits, and a tenant alone never more than them.

    Where several gateways have the same engines, what waits at the others counts as if it waited here: limits and
    shares are of all of them, as far as this one has heard. Whatever comes to several between two reports is admitted
    by each: that is what the queue may hold beyond its limits.

    Invariant: num_requests and num_tokens are the sums over the tickets that are waiting, and over the tenants.
    """

    def __init__(self, max_requests: int, max_tokens: int) -> None:
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._tenants: dict[str, _Tenant] = {}  # of those who wait
        self._others: dict[str, _Tenant] = {}  # at other gateways
        self._at_others = _Tenant()  # their sums
        self.num_requests = 0
        self.num_tokens = 0
        self._tokens_per_second = 0.0  # smoothed rate at which the queue drains
        self._drained_at: float | None = None

    def admit(self, num_requests: int, num_tokens: int, tenant: str = "") -> Ticket | Refusal:
        """An empty queue admits anything, so that nothing is refused for ever."""
        if not self.num_requests:
            self._drained_at = None  # idle time says nothing about the rate
        if self.num_requests or self._at_others.num_requests:
            if (refusal := self.refusal(num_requests, tenant)) is not None:
                return refusal
            all_tokens = self.num_tokens + self._at_others.num_tokens + num_tokens
            if all_tokens > self._max_tokens and not self._has_share(tenant, 0, num_tokens):
                return self._refusal("tokens")
        own = self._tenants.setdefault(tenant, _Tenant())
        own.num_requests += num_requests
        own.num_tokens += num_tokens
        self.num_requests += num_requests
        self.num_tokens += num_tokens
        return Ticket(num_requests, num_tokens, tenant)

    def refusal(self, num_requests: int, tenant: str = "") -> Refusal | None:
        """What `admit` would say for the number of requests alone, before anybody knows their tokens. Takes nothing."""
        num_before = self.num_requests + self._at_others.num_requests
        if not num_before or num_before + num_requests <= self._max_requests:
            return None
        return None if self._has_share(tenant, num_requests, 0) else self._refusal("requests")

    def note_others(self, waiting: Mapping[str, tuple[int, int]]) -> None:
        """waiting: requests and tokens at the other gateways now, by tenant."""
        self._others = {tenant: _Tenant(*counts) for tenant, counts in waiting.items()}
        others = self._others.values()
        self._at_others = _Tenant(sum(o.num_requests for o in others), sum(o.num_tokens for o in others))

    def leave(self, ticket: Ticket, now: float) -> None:
        """The request has its first token or has ended. Idempotent."""
        if not ticket.is_waiting:
            return
        ticket.is_waiting = False
        self.num_requests -= ticket.num_requests
        self.num_tokens -= ticket.num_tokens
        own = self._tenants[ticket.tenant]
        own.num_requests -= ticket.num_requests
        own.num_tokens -= ticket.num_tokens
        if not own.num_requests:
            del self._tenants[ticket.tenant]
        self._observe(ticket.num_tokens, now)

    def _has_share(self, tenant: str, num_requests: int, num_tokens: int) -> bool:
        """Whether a tenant that is not alone stays within its equal part with so much more."""
        own, elsewhere = self._tenants.get(tenant, _Tenant()), self._others.get(tenant, _Tenant())
        num_tenants = len(self._tenants.keys() | self._others.keys() | {tenant})
        if num_tenants == 1 or self.num_requests + self._at_others.num_requests + num_requests > 2 * self._max_requests:
            return False
        if self.num_tokens + self._at_others.num_tokens + num_tokens > 2 * self._max_tokens:
            return False
        own_requests = own.num_requests + elsewhere.num_requests + num_requests
        own_tokens = own.num_tokens + elsewhere.num_tokens + num_tokens
        return num_tenants * own_requests <= self._max_requests and num_tenants * own_tokens <= self._max_tokens

    def _observe(self, num_tokens: int, now: float) -> None:
        if self._drained_at is not None and now > self._drained_at:
            rate = num_tokens / (now - self._drained_at)
            weight = _SMOOTHING if self._tokens_per_second else 1.0
            self._tokens_per_second += weight * (rate - self._tokens_per_second)
        self._drained_at = now

    def _refusal(self, what: str) -> Refusal:
        """Retry when about half of this gateway's queue has drained: at once would meet the same queue."""
        num_requests = self.num_requests + self._at_others.num_requests
        num_tokens = self.num_tokens + self._at_others.num_tokens
        reason = f"The server's queue is full ({num_requests} requests, {num_tokens} tokens): too many {what}."
        if self._tokens_per_second <= 0:
            return Refusal(reason, 1)
        seconds = math.ceil(0.5 * self.num_tokens / self._tokens_per_second)
        return Refusal(reason, min(max(1, seconds), _MAX_RETRY_SECONDS))

"""What each tenant may spend on advisories, and how fast those beyond it are told so. Pure; time is an argument."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from gateway.base.token_bucket import TokenBucket
from gateway.config.config import GatewayConfig

BURST_SECONDS = 2.0  # of unused rate that may be spent at once
BYTES_BURST_SECONDS = 8.0
DRAFT_BURST_SECONDS = 8.0
FREE_REFUSALS = 50  # that are told at once after a calm time
REFUSALS_PER_SECOND = 20.0  # that a tenant gets answered; more have to wait for their answer
MAX_REFUSAL_SECONDS = 12.0  # that a refusal waits; beyond it the connection is dropped
STORM_SECONDS = 1.0  # a refusal waits so long: nobody heeds them
STORM_SHARE = 0.1  # of its rate that such a tenant gets


class RefusalReason(enum.StrEnum):
    RATE = "rate"
    BYTES = "bytes"


@dataclass(frozen=True, slots=True)
class AdvisoryRefusal:
    reason: RefusalReason
    retry_after_seconds: float
    delay_seconds: float | None  # before it is told; None: not worth an answer

    @property
    def whole_seconds(self) -> int:
        """From when it is told, as the header Retry-After wants it."""
        return max(1, math.ceil(self.retry_after_seconds - (self.delay_seconds or 0.0)))


class AdvisoryBudget:
    """One tenant's. What is refused or admitted wakes the server, too, so those who do not heed refusals are answered
    ever later, and get less: REFUSALS_PER_SECOND and STORM_SHARE of its rate are all that one tenant's storm makes,
    however many it sends, until it has been told all its refusals."""

    def __init__(self, per_second: float, bytes_per_second: float, draft_tokens_per_second: float = 1e12) -> None:
        self._advisories = TokenBucket(per_second, max(1.0, per_second * BURST_SECONDS))
        self._in_storm = TokenBucket(STORM_SHARE * per_second, max(1.0, STORM_SHARE * per_second))
        self._bytes = TokenBucket(bytes_per_second, bytes_per_second * BYTES_BURST_SECONDS)
        self._draft_tokens = TokenBucket(draft_tokens_per_second, draft_tokens_per_second * DRAFT_BURST_SECONDS)
        self._refused_until = 0.0  # when the last refusal that is under way will be told

    def take(self, num_bytes: int, now: float) -> AdvisoryRefusal | None:
        """None: admitted, and paid for."""
        is_storm = self._refused_until - now > STORM_SECONDS
        for bucket in (self._advisories, self._in_storm) if is_storm else (self._advisories,):
            if seconds := bucket.seconds_until_free(now):
                return self._refuse(RefusalReason.RATE, seconds, now)
        if seconds := self._bytes.seconds_until_free(now):
            return self._refuse(RefusalReason.BYTES, seconds, now)
        self._advisories.take(1.0)
        if is_storm:
            self._in_storm.take(1.0)
        self._bytes.take(num_bytes)
        return None

    def is_exceeded(self, now: float) -> bool:
        """Refusals wait to be told."""
        return self._refused_until > now

    def charge(self, num_bytes: int) -> None:
        """For a body that was longer than its head said."""
        self._bytes.take(num_bytes)

    def seconds_until_draft(self, now: float) -> float:
        """0: a draft may be computed now. What it takes is known afterwards, by charge_draft()."""
        return self._draft_tokens.seconds_until_free(now)

    def charge_draft(self, num_tokens: int) -> None:
        """Tokens that the engine has to compute."""
        self._draft_tokens.take(num_tokens)

    def _refuse(self, reason: RefusalReason, retry_after: float, now: float) -> AdvisoryRefusal:
        told_at = max(self._refused_until, now - FREE_REFUSALS / REFUSALS_PER_SECOND) + 1.0 / REFUSALS_PER_SECOND
        delay = max(0.0, told_at - now)
        if delay > MAX_REFUSAL_SECONDS:
            return AdvisoryRefusal(reason, retry_after, None)
        self._refused_until = told_at
        return AdvisoryRefusal(reason, retry_after, delay)


class AdvisoryBudgets:
    """By tenant. Tenants are API keys of the configuration, so there are few."""

    def __init__(self, config: GatewayConfig) -> None:
        self._rates = (
            config.max_advisories_per_second,
            config.max_advisory_bytes_per_second,
            config.max_draft_tokens_per_second,
        )
        self._of: dict[str, AdvisoryBudget] = {}

    def of(self, tenant: str) -> AdvisoryBudget:
        budget = self._of.get(tenant)
        if budget is None:
            budget = self._of[tenant] = AdvisoryBudget(*self._rates)
        return budget

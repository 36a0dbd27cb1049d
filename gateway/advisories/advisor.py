"""Advisories and sessions: what is asked of the engine, what is answered without it, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass

import msgspec

from gateway.advisories.advisory_budget import AdvisoryBudgets
from gateway.advisories.announcement_table import AdvisedSession, Announcement, AnnouncementTable, SessionKey
from gateway.config.config import GatewayConfig
from gateway.engine.classify import Profile
from gateway.engine.engine_client import EngineClient, EngineDeadError
from gateway.metrics.advisory_metrics import AdvisoryMetrics
from gateway.protocol.advisories import Outcome
from gateway.protocol.errors import TooManyAdvisoriesError, UnavailableError
from schedcore.api.types import DEFAULT_LEASE_MS, Advisory, AdvisoryEvent, SessionAction, SessionState

COALESCING_SECONDS = 0.25  # within which a session's further advisories are answered with what is known
_HOLDING = (SessionAction.PIN, SessionAction.PREFETCH, SessionAction.DRAFT_PREFILL)
_UNKNOWN = SessionState(0, is_known=False)

Tokens = Callable[[], Awaitable[list[int]]]


@dataclass(frozen=True, slots=True)
class AdviceResult:
    state: SessionState
    outcome: Outcome
    answered_at: float  # on the gateway's clock; the lease counts from here


class Advisor:
    """Invariant: per session, the engine is told at most one announcement in COALESCING_SECONDS, and one cancel."""

    def __init__(
        self,
        config: GatewayConfig,
        engine: EngineClient,
        metrics: AdvisoryMetrics,
        clock: Callable[[], float],
        request_ids: Iterator[int],
        budgets: AdvisoryBudgets,
    ) -> None:
        self._config = config
        self._engine = engine
        self._metrics = metrics
        self._clock = clock
        self._request_ids = request_ids
        self._budgets = budgets
        self._sessions = AnnouncementTable(config.max_advised_sessions)

    async def announce(
        self,
        key: SessionKey,
        event: AdvisoryEvent,
        eta_ms: float | None = None,
        lease_ms: float | None = None,
        tokens: Tokens | None = None,
    ) -> AdviceResult:
        """`tokens` gives the prompt as far as it is known; it is asked only if the engine knows the session.

        Raises TooManyAdvisoriesError, UnavailableError.
        """
        now = self._clock()
        self.sweep(now)
        session = self._sessions.get(key)
        if session.acted_at is not None and now - session.acted_at < COALESCING_SECONDS:
            self._metrics.count(event, "deferred")
            return AdviceResult(session.state or _UNKNOWN, "deferred", session.answered_at)
        self._check_lease_bytes(key.tenant, session)
        if tokens is not None:
            self._check_draft_tokens(key.tenant, now)
        session.acted_at, session.is_released = now, False
        wanted = (eta_ms or 0.0) + DEFAULT_LEASE_MS if lease_ms is None else lease_ms
        advisory = self._advisory(key, event, min(wanted, self._config.max_lease_ms))
        state, num_draft_tokens = await self._tell_with_draft(advisory, session, tokens)
        is_clipped = lease_ms is not None and lease_ms > self._config.max_lease_ms
        answer = self._answer(session, state, is_clipped)
        self._metrics.count(event, answer.outcome)
        if state is not None:
            self._note(key, session, state, num_draft_tokens, now)
        return answer

    async def cancel(self, key: SessionKey) -> AdviceResult:
        """What was announced will not come."""
        self.sweep(self._clock())
        session = self._sessions.get(key)
        if session.is_released:
            self._metrics.count(AdvisoryEvent.CANCEL, "deferred")
            return AdviceResult(session.state or _UNKNOWN, "deferred", session.answered_at)
        session.is_released = True
        self._sessions.withdraw(session)
        answer = self._answer(session, await self._tell(self._advisory(key, AdvisoryEvent.CANCEL)))
        self._metrics.count(AdvisoryEvent.CANCEL, answer.outcome)
        return answer

    async def query(self, key: SessionKey) -> SessionState | None:
        """None: the session is unknown. Raises UnavailableError."""
        return await self._ask(key, AdvisoryEvent.QUERY)

    async def release(self, key: SessionKey) -> SessionState | None:
        """The session is over. None: it was unknown. Raises UnavailableError."""
        if (session := self._sessions.find(key)) is not None:
            self._sessions.withdraw(session)
            session.state = None
        return await self._ask(key, AdvisoryEvent.RELEASE)

    def take_announcement(self, profile: Profile, arrived_at: float) -> Announcement | None:
        """A session's request has come; what was announced of it, if its lease has not ended."""
        if not profile.session_id:
            return None
        self.sweep(arrived_at)
        session = self._sessions.find(SessionKey(profile.tenant, profile.cache_salt, profile.session_id))
        announcement = self._sessions.withdraw(session) if session is not None else None
        if announcement is not None:
            self._metrics.lead_time.observe(max(0.0, arrived_at - announcement.since))
        return announcement

    def served(self, announcement: Announcement, num_cached_tokens: int) -> None:
        """The announced request has its first token. The last, incomplete blocks are in no cache."""
        slack = 2 * self._engine.info.block_size if self._engine.is_alive else 0
        if num_cached_tokens > 0 and num_cached_tokens >= announcement.num_tokens - slack:
            self._metrics.num_hits += 1
        else:
            self._metrics.num_misses += 1

    def sweep(self, now: float) -> None:
        """Leases that have ended."""
        for announcement in self._sessions.expire(now):
            self._metrics.num_expired += 1
            self._metrics.num_wasted_bytes += announcement.num_bytes

    def _advisory(self, key: SessionKey, event: AdvisoryEvent, lease_ms: float | None = None) -> Advisory:
        return Advisory(
            session_id=key.session_id,
            event=event,
            tenant=key.tenant,
            lease_ms=lease_ms,
            request_id=next(self._request_ids),
            cache_salt=key.cache_salt,
        )

    async def _tell_with_draft(
        self, advisory: Advisory, session: AdvisedSession, tokens: Tokens | None
    ) -> tuple[SessionState | None, int]:
        """The answer, and the draft's length. A session that may be unknown is asked for before tokens are made."""
        state = session.state
        if tokens is None or state is None or not state.is_known:
            state = await self._tell(advisory)
        if tokens is None or state is None or not state.is_known:
            return state, 0
        draft = await tokens()
        again = msgspec.structs.replace(advisory, request_id=next(self._request_ids), draft_token_ids=draft)
        answer = await self._tell(again)
        if answer is not None and answer.action is SessionAction.DRAFT_PREFILL:
            self._budgets.of(advisory.tenant).charge_draft(max(0, len(draft) - sum(answer.tier_tokens)))
        return answer, len(draft)

    async def _tell(self, advisory: Advisory) -> SessionState | None:
        """None: no answer in time. Raises UnavailableError."""
        try:
            return await self._engine.advise(advisory)
        except EngineDeadError as error:
            raise UnavailableError(str(error), code=error.code) from None
        except TimeoutError:
            return None

    async def _ask(self, key: SessionKey, event: AdvisoryEvent) -> SessionState | None:
        state = await self._tell(self._advisory(key, event))
        if state is None:
            raise UnavailableError(
                "The engine did not answer in time.", code="engine_busy", headers={"Retry-After": "1"}
            )
        return state if state.is_known else None

    def _answer(self, session: AdvisedSession, state: SessionState | None, is_clipped: bool = False) -> AdviceResult:
        now = self._clock()
        if state is None:
            return AdviceResult(session.state or _UNKNOWN, "deferred", session.answered_at)
        session.state, session.answered_at = state, now
        if not state.is_known:
            return AdviceResult(state, "missing", now)
        if state.action is SessionAction.REFUSED:
            return AdviceResult(state, "rejected", now)
        return AdviceResult(state, "clipped" if is_clipped else "accepted", now)

    def _note(
        self, key: SessionKey, session: AdvisedSession, state: SessionState, num_draft_tokens: int, now: float
    ) -> None:
        """An answer that comes after a cancel, or after the session's request, announces nothing any more."""
        if session.is_released or state.action not in _HOLDING or self._sessions.find(key) is not session:
            return
        seconds = (state.lease_ms or DEFAULT_LEASE_MS) / 1e3
        num_tokens = max(state.num_tokens, num_draft_tokens)
        announcement = Announcement(key, now, self._clock() + seconds, num_tokens, sum(state.tier_bytes))
        self._sessions.announce(session, announcement)

    def _check_draft_tokens(self, tenant: str, now: float) -> None:
        """Raises TooManyAdvisoriesError, before anything is tokenised."""
        if seconds := self._budgets.of(tenant).seconds_until_draft(now):
            self._metrics.num_refused["draft_tokens"] += 1
            raise TooManyAdvisoriesError(
                f"Too many tokens of drafts: {self._config.max_draft_tokens_per_second:g} per second are computed for "
                "you. Announce without a draft, or wait.",
                retry_after_seconds=math.ceil(seconds),
            )

    def _check_lease_bytes(self, tenant: str, session: AdvisedSession) -> None:
        """Raises TooManyAdvisoriesError. What the session itself holds is not counted against it."""
        own = session.announcement.num_bytes if session.announcement is not None else 0
        if self._sessions.num_lease_bytes(tenant) - own >= self._config.max_lease_bytes:
            self._metrics.num_refused["lease_bytes"] += 1
            raise TooManyAdvisoriesError(
                f"Leases hold {self._config.max_lease_bytes} bytes of device memory already: cancel some, or wait.",
                retry_after_seconds=1,
            )


def timestamped(answer: AdviceResult, now: float, wall: float) -> tuple[float | None, float | None]:
    """(ms that remain of the lease, Unix seconds at which it ends); `now` and `wall` are the same moment."""
    if answer.state.lease_ms is None:
        return None, None
    left_ms = max(0.0, answer.state.lease_ms - (now - answer.answered_at) * 1e3)
    return left_ms, wall + left_ms / 1e3

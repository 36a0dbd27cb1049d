"""What the gateway remembers of sessions that were advised about: bounded, least recently used first. Pure."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from schedcore.api.types import SessionState


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Sessions of one tenant never meet another's: the tenant is part of their name."""

    tenant: str
    cache_salt: str
    session_id: str


@dataclass(slots=True, eq=False)
class Announcement:
    """A request was announced and has not come."""

    key: SessionKey
    since: float  # of the first advisory
    expires_at: float
    num_tokens: int  # that the request should find in the cache
    num_bytes: int  # of cache that is to be in device memory for it


@dataclass(slots=True, eq=False)
class AdvisedSession:
    acted_at: float | None = None  # when the engine was last told
    is_released: bool = False  # the last thing it was told
    state: SessionState | None = None  # its last answer
    answered_at: float = 0.0
    announcement: Announcement | None = None


@dataclass(slots=True)
class _Tenant:
    sessions: OrderedDict[SessionKey, AdvisedSession] = field(default_factory=OrderedDict)
    num_lease_bytes: int = 0  # the sum over its announcements


class AnnouncementTable:
    """Each tenant has room for `max_sessions`, and can drive out nobody else's."""

    def __init__(self, max_sessions: int) -> None:
        self._max_sessions = max_sessions
        self._tenants: dict[str, _Tenant] = {}
        self._by_expiry: list[tuple[float, int, Announcement]] = []
        self._num_pushed = 0

    def find(self, key: SessionKey) -> AdvisedSession | None:
        tenant = self._tenants.get(key.tenant)
        return tenant.sessions.get(key) if tenant else None

    def get(self, key: SessionKey) -> AdvisedSession:
        """Makes room for it if it is new."""
        tenant = self._tenants.setdefault(key.tenant, _Tenant())
        session = tenant.sessions.get(key)
        if session is not None:
            tenant.sessions.move_to_end(key)
            return session
        while len(tenant.sessions) >= self._max_sessions:
            self._forget(tenant, next(iter(tenant.sessions)))
        session = tenant.sessions[key] = AdvisedSession()
        return session

    def num_lease_bytes(self, tenant: str) -> int:
        return self._tenants[tenant].num_lease_bytes if tenant in self._tenants else 0

    def announce(self, session: AdvisedSession, announcement: Announcement) -> None:
        """In the place of what was announced before; the lead time counts from the first."""
        if session.announcement is not None:
            announcement.since = session.announcement.since
            self.withdraw(session)
        session.announcement = announcement
        self._tenants[announcement.key.tenant].num_lease_bytes += announcement.num_bytes
        self._num_pushed += 1
        heapq.heappush(self._by_expiry, (announcement.expires_at, self._num_pushed, announcement))

    def withdraw(self, session: AdvisedSession) -> Announcement | None:
        """The request came, or will not."""
        announcement, session.announcement = session.announcement, None
        if announcement is not None:
            self._tenants[announcement.key.tenant].num_lease_bytes -= announcement.num_bytes
        return announcement

    def expire(self, now: float) -> Iterator[Announcement]:
        """Withdraws and returns what was announced in vain."""
        while self._by_expiry and self._by_expiry[0][0] <= now:
            _, _, announcement = heapq.heappop(self._by_expiry)
            session = self.find(announcement.key)
            if session is not None and session.announcement is announcement:
                self.withdraw(session)
                yield announcement

    def _forget(self, tenant: _Tenant, key: SessionKey) -> None:
        self.withdraw(tenant.sessions[key])
        del tenant.sessions[key]

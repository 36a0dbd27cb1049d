"""Sessions over vLLM: what an announced request will find in the cache when it comes.

    announced   What the device has of the session's target (its draft, or the tokens of its last request) is leased:
                evicted last (free_blocks.py).
    active      While nobody who is waited for waits, what is missing is prepared: a request for the target and one
                token is served behind everybody who is online, its token thrown away. So what slower tiers have comes
                back and the rest of a draft is computed by vLLM's own ways; then it is leased, too.
    over        The request comes, the lease ends, or the announcement is taken back.

As our own core (cpp/core/sessions/announcements.h), but that what is prepared goes before other offline work, and that
a step computes at least one token for it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from schedcore.api.types import DEFAULT_LEASE_MS, Advisory, AdvisoryEvent, SessionAction, SessionState
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import MAX_NUM_SESSIONS, Int32, SessionName
from vllm_engine.sessions.free_blocks import LEASED, SESSION, FreeBlocks
from vllm_engine.sessions.session_table import Session, SessionTable

logger = logging.getLogger(__name__)

MAX_PREPARING = 4  # sessions at a time
_ANNOUNCING = (AdvisoryEvent.TYPING, AdvisoryEvent.AGENT_STEP)


class Cache(Protocol):
    """What is asked of vLLM's, and of the slower tiers (vllm_engine/sessions/device_cache.py)."""

    block_size: int
    block_bytes: int
    num_blocks: int
    max_model_len: int

    def probe(self, token_ids: Sequence[int], name: SessionName, lora_request: Any) -> Any:
        """A request for these tokens and one more."""

    def cached(self, probe: Any) -> tuple[int, list[Any]]:
        """How many of its first tokens the device has, and the blocks that hold them."""

    def num_in_tiers(self, session: Session, target: Sequence[int], num_here: int) -> tuple[list[int], int]:
        """Tokens behind those on the device: on the host, on the disk; and how many follow without a gap."""

    def prepare(self, token_ids: Sequence[int], session: Session) -> str:
        """Begins a request that nobody waits for, and says its name."""

    def drop(self, name: str) -> None:
        """Ends it. Idempotent."""

    def is_free_for(self, num_blocks: int) -> bool:
        """Nobody who is waited for waits, and there is room."""


@dataclass(slots=True)
class SessionCounters:
    num_announced_requests: int = 0  # that came while they were
    num_prepared_tokens: int = 0
    num_wasted_tokens: int = 0  # of these, those whose announcement ended without a request


class Announcements:
    """One thread's."""

    def __init__(
        self, cache: Cache, free: FreeBlocks, clock: Callable[[], float], book: SessionBook | None = None
    ) -> None:
        """book: None: sessions are known until the engine ends. Else those of an earlier life are known now."""
        self._cache, self._free, self._clock, self._book = cache, free, clock, book
        self._sessions = SessionTable(MAX_NUM_SESSIONS)
        self._leases: dict[SessionName, Session] = {}  # in the order of their announcements
        self._preparing: dict[str, Session] = {}
        self.counters = SessionCounters()
        if book is not None:
            for name, token_ids in book.recall():
                self._remember(name, token_ids)
            logger.info("%d sessions are known from an earlier life", len(self._sessions))

    @property
    def num_sessions(self) -> int:
        return len(self._sessions)

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    # ---- requests of sessions ----

    def on_added(self, name: SessionName) -> None:
        """A request of the session has come."""
        session = self._sessions.find(name)
        if session is None:
            session, gone = self._sessions.add(name)
            if gone is not None:
                self._end(gone)
        self._drop_preparation(session)
        if session.is_leased and not session.is_answered:
            session.is_answered = True
            self.counters.num_announced_requests += 1
            session.num_prepared = 0

    def on_first_token(self, name: SessionName) -> None:
        """Its request has what was leased for it."""
        if (session := self._leases.get(name)) is not None and session.is_answered:
            self._end(session)

    def on_ended(self, name: SessionName, token_ids: Int32, lora_request: Any) -> None:
        """Its request has ended, and has computed these tokens."""
        session = self._sessions.find(name)
        if session is None or len(token_ids) == 0:
            return
        session.tokens, session.lora_request = token_ids, lora_request
        if session.is_leased:  # announced while this request was running
            self._retarget(session)
        if self._book is not None and lora_request is None:
            self._book.note(name, token_ids)

    def note_prepared(self, request_name: str) -> bool:
        """A request has ended. False if it was none of ours."""
        session = self._preparing.pop(request_name, None)
        if session is None:
            return False
        session.preparing = None
        self._renew_lease(session)
        num_tokens = session.num_leased - session.num_before
        if num_tokens > 0:
            session.num_prepared += num_tokens
            self.counters.num_prepared_tokens += num_tokens
        return True

    # ---- advisories ----

    def advise(self, advisory: Advisory) -> SessionState:
        name = SessionName(advisory.tenant, advisory.cache_salt, advisory.session_id)
        if advisory.event is AdvisoryEvent.RELEASE and self._book is not None:
            self._book.forget(name)
        session = self._sessions.find(name)
        if session is None:
            return SessionState(request_id=advisory.request_id, is_known=False)
        action = SessionAction.NONE
        if advisory.event in _ANNOUNCING:
            action = self._announce(session, advisory)
        elif advisory.event in (AdvisoryEvent.CANCEL, AdvisoryEvent.RELEASE):
            self._end(session)
            action = SessionAction.RELEASE
        state = self._report(session, advisory.request_id, action)
        if advisory.event is AdvisoryEvent.RELEASE:
            self._sessions.remove(name)
        return state

    def advance(self) -> None:
        """Once per turn of the engine."""
        if not self._leases:
            return
        now = self._clock()
        for session in [each for each in self._leases.values() if each.lease_end <= now]:
            self._end(session)
        for session in list(self._leases.values()):
            if len(self._preparing) >= MAX_PREPARING:
                return
            if session.is_active and session.preparing is None:
                self._prepare(session)

    def close(self) -> None:
        if self._book is not None:
            self._book.close()

    def check_invariants(self) -> None:
        """Raises RuntimeError on the first broken one."""
        for session in self._leases.values():
            if not session.is_leased:
                raise RuntimeError("a session is leased and does not know it")
        for name, session in self._preparing.items():
            if session.preparing != name or not session.is_leased:
                raise RuntimeError("something is prepared for a session that does not expect it")

    # ---- within ----

    def _remember(self, name: SessionName, token_ids: Int32) -> None:
        """As if a request had computed these, if one here could have."""
        num_tokens = len(token_ids)
        fits = 0 < num_tokens < min(self._cache.max_model_len, self._cache.num_blocks * self._cache.block_size)
        if name.session_id and fits and token_ids.min() >= 0 and self._sessions.find(name) is None:
            self._sessions.add(name)[0].tokens = token_ids

    def _announce(self, session: Session, advisory: Advisory) -> SessionAction:
        size, draft = self._cache.block_size, advisory.draft_token_ids
        most = min(self._cache.max_model_len - 2, (self._cache.num_blocks - 1) * size)
        if len(draft) > most or any(token < 0 for token in draft):
            return SessionAction.REFUSED
        complete = draft[: len(draft) // size * size]
        if complete != session.draft:
            self._drop_preparation(session)
            session.draft = complete
        lease_ms = DEFAULT_LEASE_MS if advisory.lease_ms is None else max(0.0, advisory.lease_ms)
        if not session.is_leased:
            session.is_leased, session.is_answered = True, False
            self._leases[session.name] = session
        session.lease_end = self._clock() + lease_ms / 1000
        self._retarget(session)
        return self._plan(session)

    def _retarget(self, session: Session) -> None:
        target = session.target(self._cache.block_size)
        session.probe = self._cache.probe(target, session.name, session.lora_request) if target else None
        self._renew_lease(session)
        session.is_active = session.probe is not None

    def _renew_lease(self, session: Session) -> None:
        """Of what is cached by now; the last blocks go first."""
        num_tokens, blocks = self._cache.cached(session.probe) if session.probe is not None else (0, [])
        old, session.leased, session.num_leased = session.leased, blocks, num_tokens
        self._give_back(old)
        for block in reversed(blocks):
            if self._free.level(block) != LEASED:
                self._free.move(block, LEASED)

    def _give_back(self, blocks: list[Any]) -> None:
        """What no lease has any more."""
        leased = {block.block_id for each in self._leases.values() for block in each.leased} if blocks else set()
        for block in reversed(blocks):
            if block.block_id not in leased and self._free.level(block) == LEASED:
                self._free.move(block, SESSION)

    def _extents(self, session: Session) -> tuple[int, int, list[int], int]:
        """Tokens of the target, on the device, in each slower tier, and of those as many as can come."""
        target = session.target(self._cache.block_size)
        probe = session.probe
        if probe is None and target:
            probe = self._cache.probe(target, session.name, session.lora_request)
        num_here = self._cache.cached(probe)[0] if probe is not None else 0
        slower, num_coming = self._cache.num_in_tiers(session, target, num_here)
        return len(target), num_here, slower, num_coming

    def _plan(self, session: Session) -> SessionAction:
        num_target, num_here, _, num_coming = self._extents(session)
        if num_here == num_target:
            return SessionAction.PIN if num_target > 0 else SessionAction.NONE
        if num_coming == 0 and not session.draft:
            return SessionAction.PIN if num_here > 0 else SessionAction.NONE
        is_computed = bool(session.draft) and num_here + num_coming < num_target
        return SessionAction.DRAFT_PREFILL if is_computed else SessionAction.PREFETCH

    def _prepare(self, session: Session) -> None:
        num_target, num_here, _, num_coming = self._extents(session)
        wanted = num_target if session.draft else num_here + num_coming
        if wanted <= num_here:
            session.is_active = False
        elif self._cache.is_free_for((wanted - num_here) // self._cache.block_size + 1):
            session.is_active = False
            session.num_before = num_here
            session.preparing = self._cache.prepare(session.target(self._cache.block_size)[:wanted], session)
            self._preparing[session.preparing] = session

    def _drop_preparation(self, session: Session) -> None:
        if session.preparing is not None:
            del self._preparing[session.preparing]
            self._cache.drop(session.preparing)
            session.preparing = None

    def _end(self, session: Session) -> None:
        self._drop_preparation(session)
        if session.is_leased:
            session.is_leased = False
            del self._leases[session.name]
            self.counters.num_wasted_tokens += session.num_prepared
            session.num_prepared = 0
        leased, session.leased, session.num_leased = session.leased, [], 0
        session.draft, session.probe, session.is_active = [], None, False
        self._give_back(leased)

    def _report(self, session: Session, request_id: int, action: SessionAction) -> SessionState:
        _, num_here, slower, _ = self._extents(session)
        tier_tokens = [num_here, *slower]
        size, num_bytes = self._cache.block_size, self._cache.block_bytes
        return SessionState(
            request_id=request_id,
            is_known=True,
            num_tokens=len(session.tokens),
            tier_tokens=tier_tokens,
            tier_bytes=[tokens // size * num_bytes for tokens in tier_tokens],
            action=action,
            lease_ms=max(0.0, session.lease_end - self._clock()) * 1000 if session.is_leased else None,
        )

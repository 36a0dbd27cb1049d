"""Of several gateways that share a PostgreSQL database, the one that leads: it holds an advisory lock in a session of
its own. When it dies the server ends the session at once, and the next one takes the lock.

Nobody leads without the database, and what a leader decides waits; nothing else does.

A leader is sure of it for SURE_SECONDS from when it last asked. The server ends a session that asks nothing for
IDLE_SECONDS, which are more: one that was stopped, or cut off, has known for a while that it leads no longer when
another one begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable

from sqlalchemy import URL, Connection, create_engine, exc, text
from sqlalchemy.pool import NullPool

from gateway.offline.database.database import LEADER_KEY

TURN_SECONDS = 1.0
SURE_SECONDS = 5.0
IDLE_SECONDS = 10
_CONNECTION = {"connect_timeout": 5, "tcp_user_timeout": 5000, "keepalives_idle": 2, "keepalives_interval": 1}

_TRY = text("SELECT pg_try_advisory_lock(:key)")
_ALIVE = text("SELECT 1")
_LIMIT_IDLENESS = text(  # a server before version 14 has no such setting: it waits for TCP
    "SELECT set_config(name, :value, false) FROM pg_settings WHERE name = 'idle_session_timeout'"
)
_HOLDER = text(
    "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = :key >> 32 AND objid::bigint = :key & 4294967295"
)

_log = logging.getLogger("hocket.gateway")


class LeaderLock:
    """A Leadership (gateway/fleet/fleet_size.py)."""

    def __init__(self, url: URL, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        """url: of a PostgreSQL database. name: of this gateway."""
        self._name, self._clock = name, clock
        connecting = {**_CONNECTION, "application_name": name}
        self._engine = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT", connect_args=connecting)
        self._guard = threading.Lock()  # of the session, which one thread at a time may use
        self._session: Connection | None = None
        self._holds = False
        self._sure_until = -math.inf
        self._other = ""

    @property
    def is_leader(self) -> bool:
        return self._clock() < self._sure_until

    @property
    def leader(self) -> str:
        """Who leads, as this gateway last heard; empty: nobody, or it does not know."""
        return self._name if self.is_leader else self._other

    async def keep(self, on_elected: Callable[[], None]) -> None:
        """For ever. on_elected: called when this one begins to lead."""
        try:
            while True:
                was_leader = self.is_leader
                await asyncio.to_thread(self._turn)
                if self.is_leader and not was_leader:
                    _log.info("this gateway, %s, leads now: it says how many nodes the fleet needs", self._name)
                    on_elected()
                await asyncio.sleep(TURN_SECONDS)
        finally:
            await asyncio.to_thread(self._resign)

    def _turn(self) -> None:
        with self._guard:
            asked = self._clock()
            try:
                session = self._session or self._connect()
                if self._holds:
                    session.execute(_ALIVE)
                else:
                    self._holds = bool(session.scalar(_TRY, {"key": LEADER_KEY}))
                self._other = "" if self._holds else session.scalar(_HOLDER, {"key": LEADER_KEY}) or ""
            except exc.SQLAlchemyError as error:
                if self._session is not None:
                    reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
                    _log.warning("the database cannot say who leads the gateways: %s", reason)
                self._leave()
            if self._holds:
                self._sure_until = asked + SURE_SECONDS

    def _connect(self) -> Connection:
        session = self._session = self._engine.connect()
        session.execute(_LIMIT_IDLENESS, {"value": f"{IDLE_SECONDS}s"})
        return session

    def _resign(self) -> None:
        with self._guard:
            self._leave()

    def _leave(self) -> None:
        """REQUIRES: the guard."""
        session, self._session, self._holds, self._other = self._session, None, False, ""
        self._sure_until = -math.inf
        if session is not None:
            with contextlib.suppress(exc.SQLAlchemyError):
                session.close()

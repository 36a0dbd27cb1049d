"""All connections of a server: how long each may keep it waiting, and who gives way when there are too many.

A connection is served from the head of a request to the end of its answer, and nobody cuts it then, but for a client
that does not read. Before, between and after, it waits in a line:

    head     for the (rest of the) head of a request
    idle     for the next request
    stalled  with full buffers, for a client that does not read
    leaving  for a client to take the last bytes
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from gateway.base.limited_log import LimitedLog
from gateway.config.config import GatewayConfig
from gateway.http.descriptors import NUM_RESERVED
from gateway.http.waiting_line import WaitingLine
from gateway.metrics.connection_metrics import ConnectionMetrics

_LEAVING_SECONDS = 5.0
_STALL_SECONDS = 60.0
_PROMPT_SECONDS = 1.0  # an honest client needs less to send a head
_MAX_LOOKED_AT = 32  # when somebody has to give way
_SWEEPS_PER_LIMIT = 4
_MAX_SWEEP_SECONDS = 1.0

_log = logging.getLogger("hocket.gateway")


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    max_connections: int  # that are served at a time
    head_seconds: float
    idle_seconds: float
    stall_seconds: float = _STALL_SECONDS
    num_reserved: int = NUM_RESERVED  # beyond, for /health and /metrics, and for those who wait

    @staticmethod
    def of(config: GatewayConfig, max_connections: int) -> ConnectionLimits:
        return ConnectionLimits(max_connections, config.head_timeout_ms / 1e3, config.idle_timeout_ms / 1e3)


class Peer(Protocol):
    """What is asked of a connection."""

    def num_unsent_bytes(self) -> int: ...

    def refuse_head(self) -> None:
        """It was too slow: it is told, and closed."""

    def abort(self) -> None:
        """Closed at once."""


class Connections:
    def __init__(self, limits: ConnectionLimits, metrics: ConnectionMetrics, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.metrics = metrics
        self.log = LimitedLog(_log, clock)
        self._clock = clock
        self._open: set[Peer] = set()
        self._served: set[Peer] = set()
        self._head: WaitingLine[Peer] = WaitingLine(limits.head_seconds)
        self._idle: WaitingLine[Peer] = WaitingLine(limits.idle_seconds)
        self._stalled: WaitingLine[Peer] = WaitingLine(limits.stall_seconds)
        self._leaving: WaitingLine[Peer] = WaitingLine(_LEAVING_SECONDS)
        self._lines = (self._head, self._idle, self._stalled, self._leaving)
        self._num_unsent: dict[Peer, int] = {}  # of those that have stalled, when they were last looked at
        metrics.max_open = limits.max_connections

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_full(self) -> bool:
        return len(self._open) >= self.limits.max_connections + self.limits.num_reserved

    @property
    def is_crowded(self) -> bool:
        """More are served than should be: only those who look after the server are, then."""
        return len(self._served) > self.limits.max_connections

    def add(self, peer: Peer) -> None:
        self._open.add(peer)
        self._head.add(peer, self._clock())
        self.metrics.num_open = len(self._open)

    def remove(self, peer: Peer) -> None:
        self._open.discard(peer)
        self._served.discard(peer)
        for line in self._lines:
            line.discard(peer)
        self._num_unsent.pop(peer, None)
        self.metrics.num_open = len(self._open)

    def begin_head(self, peer: Peer) -> None:
        self._idle.discard(peer)
        self._head.add(peer, self._clock())

    def begin_serving(self, peer: Peer) -> None:
        self._served.add(peer)
        self._head.discard(peer)
        self._idle.discard(peer)

    def begin_idling(self, peer: Peer) -> None:
        self._served.discard(peer)
        self._idle.add(peer, self._clock())

    def begin_leaving(self, peer: Peer) -> None:
        self._served.discard(peer)
        self._leaving.add(peer, self._clock())

    def begin_stalling(self, peer: Peer) -> None:
        self._num_unsent[peer] = peer.num_unsent_bytes()
        self._stalled.add(peer, self._clock())

    def end_stalling(self, peer: Peer) -> None:
        self._num_unsent.pop(peer, None)
        self._stalled.discard(peer)

    def make_room(self) -> None:
        """For a new connection: if there are too many, one that is not served gives way."""
        if not self.is_full or (peer := self._dispensable()) is None:
            return
        self.count("made_room", "All %d connections are taken: one that waited gave way", self.limits.max_connections)
        self.remove(peer)
        peer.abort()

    def sweep(self) -> None:
        """Closes what has kept us waiting for too long."""
        now = self._clock()
        for peer in self._head.take_expired(now):
            self.count("head_timeout", "A request's head did not arrive in %g s", self.limits.head_seconds)
            self._leaving.add(peer, now)
            peer.refuse_head()
        for peer in self._idle.take_expired(now):
            self.metrics.num_closed["idle_timeout"] += 1
            peer.abort()
        for peer in self._leaving.take_expired(now):
            peer.abort()
        for peer in self._stalled.take_expired(now):
            self._look_at_stalled(peer)

    def count(self, reason: str, message: str, *args: object) -> None:
        self.metrics.num_closed[reason] += 1
        self.log.warning(reason, message, *args)

    async def keep_sweeping(self) -> None:
        shortest = min(self.limits.head_seconds, self.limits.idle_seconds, self.limits.stall_seconds)
        seconds = min(_MAX_SWEEP_SECONDS, shortest / _SWEEPS_PER_LIMIT)
        while True:
            await asyncio.sleep(seconds)
            self.sweep()

    def _dispensable(self) -> Peer | None:
        """A slow head, else who is idle for longest, else a head that may be on its way."""
        now = self._clock()
        head = next(iter(self._head), None)
        if head is not None and now - self._head.since(head) > _PROMPT_SECONDS:
            return head
        for peer in islice(self._idle, _MAX_LOOKED_AT):
            if not peer.num_unsent_bytes() or now - self._idle.since(peer) > self.limits.stall_seconds:
                return peer
        return next(iter(self._leaving), None) or head

    def _look_at_stalled(self, peer: Peer) -> None:
        num_unsent = peer.num_unsent_bytes()
        if num_unsent != self._num_unsent[peer]:  # it reads, if slowly; or more was written meanwhile
            self.begin_stalling(peer)
            return
        self._num_unsent.pop(peer)
        self.count("stalled", "A client read nothing for %g s", self.limits.stall_seconds)
        peer.abort()

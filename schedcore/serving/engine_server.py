"""Between the engine and its gateways: takes in messages, lets the engine step, publishes what came of it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from typing import Protocol

from schedcore.api import wire
from schedcore.api.types import (
    Advisory,
    CacheReset,
    EngineInfo,
    EngineRequest,
    EngineStats,
    FinishReason,
    SessionState,
    TokenDelta,
)
from schedcore.serving.arrival_news import ArrivalNews
from schedcore.serving.gateway_link import GatewayLink
from schedcore.serving.session_news import SessionNews
from schedcore.serving.tenant_news import TenantNews

logger = logging.getLogger(__name__)

STATS_SECONDS = 0.25  # between two snapshots while working
QUIET_MS = 100  # without a message after the last step: time to check invariants
HELD_MS = 20  # between two looks at whether a message has waited long enough for a peer
IDLE_MS = 1000  # between two looks at whether anybody still needs us


class Engine(Protocol):
    """What is served: worker/process/engine.py, vllm_engine/engine.py. Calls do not overlap."""

    def step(self) -> bool:
        """One round. False if there was nothing to run, and nothing is under way."""

    def add(self, gateway: bytes, request: EngineRequest) -> None:
        """Accepts the request, or refuses it by its final delta."""

    def abort(self, gateway: bytes, request_id: int) -> None:
        """Idempotent; the final delta of an open request follows."""

    def abort_all(self, gateway: bytes | None = None) -> None:
        """Of one gateway, or of all."""

    def fail_all(self, message: str) -> None:
        """Every open request gets its final delta: the engine cannot go on."""

    def advise(self, advisory: Advisory) -> SessionState: ...
    def reset_prefix_cache(self) -> int | None:
        """Blocks that were dropped; what requests use stays. None: they would be found again in other memory."""

    def take_deltas(self) -> dict[bytes, list[TokenDelta]]:
        """What has happened since the last call, per gateway, in order."""

    def stats(self) -> EngineStats: ...
    def check_invariants(self) -> None:
        """Raises on the first broken one."""


class Peers(Protocol):
    """Other engines, and messages that wait for their word: worker/tiers/engine_peers.py."""

    @property
    def endpoint(self) -> str:
        """tcp://host:port, where they get this engine's blocks."""

    @property
    def num_held(self) -> int: ...
    def hold(self, gateway: bytes, message: wire.Submit | wire.Advise) -> bool:
        """False: it need not wait."""

    def take(self) -> list[tuple[bytes, wire.Submit | wire.Advise]]:
        """Those that need wait no longer."""

    def drop(self, gateway: bytes, request_id: int) -> bool:
        """Whether that request was held; it is no longer."""

    def drop_all(self, gateway: bytes) -> None: ...
    def adopt(self, gateway: bytes, order: wire.Adopt) -> bool:
        """False: it cannot be."""

    def take_adopted(self) -> list[tuple[bytes, wire.Adopted]]:
        """Answers to orders that were taken."""


class EngineServer:
    """One thread, one loop. While there is work, messages are taken in between steps without blocking."""

    def __init__(
        self,
        engine: Engine,
        link: GatewayLink,
        info: EngineInfo,
        clock: Callable[[], float],
        is_orphaned: Callable[[], bool] = lambda: False,
        incarnation: str = "",
        peers: Peers | None = None,
    ) -> None:
        """incarnation: of this process; empty: one is drawn. peers: None: it has none."""
        self._engine, self._link, self._info = engine, link, info
        self._clock, self._is_orphaned = clock, is_orphaned
        self._incarnation = incarnation or secrets.token_hex(16)
        self._peers = peers
        self._gateways: set[bytes] = set()
        self._news = SessionNews()
        self._arrivals = ArrivalNews(clock)
        self._tenants = TenantNews() if link.network_endpoint else None  # a gateway of this machine is the only one
        self._is_stopping = False
        self._is_told_to = False  # by a gateway, which expects no more
        self._is_working = False
        self._is_checked = True  # invariants, since the last work
        self._stats_time = clock()

    def stop(self) -> None:
        """At the next turn; what is open is aborted. Safe in a signal handler."""
        self._is_stopping = True

    def run(self) -> None:
        """Returns when stopped. If anything raises, every open request fails, gateways are told, and it raises on."""
        try:
            while not self._is_stopping:
                self._turn()
        except Exception as error:
            message = f"the engine failed: {type(error).__name__}: {error}"
            self._say_goodbye(message)
            self._engine.fail_all(message)
            self._publish_deltas()
            raise
        if not self._is_told_to:
            self._say_goodbye("the engine was stopped")
        self._engine.abort_all()
        self._publish_deltas()

    def _turn(self) -> None:
        self._take_in()
        did_work = self._engine.step()
        self._publish_deltas()
        if did_work:
            self._is_working, self._is_checked = True, False
            if self._clock() - self._stats_time >= STATS_SECONDS:
                self._publish_stats()
                self._stop_if_orphaned()
        else:
            self._rest()

    def _take_in(self) -> None:
        for gateway, message in self._link.receive():
            if message is None:
                self._forget(gateway)
                continue
            if gateway not in self._gateways:
                self._meet(gateway)
            self._heed(gateway, message)
        if self._peers is not None and self._peers.num_held:
            for gateway, waited in self._peers.take():
                self._obey(gateway, waited)
            for gateway, adopted in self._peers.take_adopted():
                self._send(gateway, adopted)

    def _heed(self, gateway: bytes, message: wire.ToEngine) -> None:
        match message:
            case wire.Submit() | wire.Advise():
                if self._peers is None or not self._peers.hold(gateway, message):
                    self._obey(gateway, message)
            case wire.Adopt(request_id):
                if self._peers is None or not self._peers.adopt(gateway, message):
                    self._send(gateway, wire.Adopted(request_id, []))
            case wire.Abort(request_id):
                if self._peers is not None and self._peers.drop(gateway, request_id):
                    self._send(gateway, wire.Deltas([TokenDelta(request_id, [], FinishReason.ABORT)]))
                else:
                    self._engine.abort(gateway, request_id)
            case wire.Hello(wants_arrivals):
                if wants_arrivals:
                    self._arrivals.join(gateway)
                blocks = "" if self._peers is None else self._peers.endpoint
                ready = wire.Ready(self._info, self._incarnation, self._link.network_endpoint, blocks)
                self._send(gateway, ready)
            case wire.ResetCache(request_id):
                answer = CacheReset(request_id, self._engine.reset_prefix_cache())
                self._send(gateway, wire.Reset(answer))
            case wire.Ping():
                self._send(gateway, wire.Pong())
            case wire.Shutdown():
                self._is_told_to = True
                self.stop()

    def _obey(self, gateway: bytes, message: wire.Submit | wire.Advise) -> None:
        match message:
            case wire.Submit(request):
                self._news.note_request(gateway, request)
                self._arrivals.note_request(gateway, request)
                if self._tenants is not None:
                    self._tenants.note_request(gateway, request)
                self._engine.add(gateway, request)
            case wire.Advise(advisory):
                self._news.note_advisory(gateway, advisory)
                self._send(gateway, wire.Session(self._engine.advise(advisory)))

    def _rest(self) -> None:
        """Blocks until there may be something to do."""
        if self._is_stopping:
            return
        if self._is_working or any(map(self._news.has_more, self._gateways)):
            self._is_working = False
            self._publish_stats()
        if self._peers is not None and self._peers.num_held:
            self._link.wait(HELD_MS)
            return
        if self._link.wait(IDLE_MS if self._is_checked else QUIET_MS):
            return
        if not self._is_checked:
            self._engine.check_invariants()
            self._is_checked = True
        self._stop_if_orphaned()

    def _publish_deltas(self) -> None:
        for gateway, deltas in self._engine.take_deltas().items():
            if self._tenants is not None:
                self._tenants.note_deltas(gateway, deltas)
            self._send(gateway, wire.Deltas(deltas))

    def _publish_stats(self) -> None:
        self._stats_time = self._clock()
        stats = self._engine.stats()
        plain = wire.Stats(stats, self._incarnation)
        for gateway in list(self._gateways):
            sessions = self._news.take(gateway)
            tenants = [] if self._tenants is None else self._tenants.take(gateway)
            arrivals = self._arrivals.take(gateway)
            is_plain = not sessions and not tenants and not arrivals
            told = plain if is_plain else wire.Stats(stats, self._incarnation, sessions, tenants, arrivals)
            self._send(gateway, told)

    def _send(self, gateway: bytes, message: wire.ToGateway) -> None:
        if not self._link.send(gateway, message):
            self._forget(gateway)

    def _meet(self, gateway: bytes) -> None:
        self._gateways.add(gateway)
        if self._tenants is not None:
            self._tenants.join(gateway)

    def _forget(self, gateway: bytes) -> None:
        """Idempotent."""
        if gateway in self._gateways:
            logger.info("%s is gone; what it has open is aborted", gateway.decode())
            self._gateways.remove(gateway)
            self._news.forget(gateway)
            self._arrivals.forget(gateway)
            if self._tenants is not None:
                self._tenants.forget(gateway)
            if self._peers is not None:
                self._peers.drop_all(gateway)
            self._engine.abort_all(gateway)

    def _stop_if_orphaned(self) -> None:
        if self._is_orphaned():
            logger.warning("nobody needs this engine any longer; stopping")
            self.stop()

    def _say_goodbye(self, message: str) -> None:
        """Before gateways hear of requests: what goes on elsewhere is not asked of this engine once more."""
        for gateway in list(self._gateways):
            self._send(gateway, wire.Fatal(message))

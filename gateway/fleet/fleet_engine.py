"""Engines on nodes that come and go, as one engine.

A node dials this gateway and says what its engine is; the gateway connects to that engine, and requests and tokens pass
between the two only. A node lives as long as it is heard; what it has open when it is gone fails. Requests that come
while no node is there wait for one, for so long and not longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from gateway.base.limited_log import LimitedLog
from gateway.base.supervision import Supervisor
from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.engine_line import EngineLine
from gateway.fleet.fleet_door import FleetDoor
from gateway.fleet.fleet_peer import FleetPeer
from gateway.fleet.fleet_size import UNKNOWN_OUTPUTS, FleetSize, Leadership
from gateway.fleet.fleet_stats import add_counters, sum_stats
from gateway.fleet.lobby import Lobby
from gateway.fleet.node import TURN_SECONDS, USABLE, Node, NodeCondition, node_status, peer_source
from gateway.fleet.node_routing import NodeRouting
from gateway.fleet.other_gateways import OtherGateways, OthersWork
from gateway.fleet.remote_engine import RemoteEngine
from gateway.fleet.session_moves import SessionMoves
from gateway.metrics.catalogue.reading import NO_STATS
from gateway.protocol.server.status import FleetStatus
from schedcore.api import wire
from schedcore.api.cluster_tls import ClusterTls
from schedcore.api.fleet_wire import (
    Drain,
    DrainNode,
    Fence,
    Heard,
    NodeHello,
    NodeState,
    Refused,
    SeatState,
    Superseded,
    Welcome,
)
from schedcore.api.types import (
    Advisory,
    AdvisoryEvent,
    CacheReset,
    EngineInfo,
    EngineRequest,
    EngineStats,
    NodeStats,
    PeerSource,
    SessionState,
)

MAX_NODES = 1024  # names; of those that are gone the one that went first is forgotten

_log = logging.getLogger("hocket.gateway")
_Chosen = tuple[Node, PeerSource | None]  # who takes it, and where it may pull from


class FleetEngine:
    """An EngineClient."""

    def __init__(
        self,
        door: FleetDoor,
        tls: ClusterTls | None,
        fingerprint: str,
        supervisor: Supervisor,
        timeout_seconds: float,
        wait_seconds: float,
        routing: str = "advised",
        ttft_target_seconds: float | None = None,
        leadership: Leadership | None = None,
    ) -> None:
        """fingerprint: of the model that nodes have to serve. timeout_seconds: of silence of an engine that has hung.

        wait_seconds: that a request waits for a node at most. routing: docs/routing.md. ttft_target_seconds: by which
        it counts how many nodes are needed. leadership: of several gateways one counts; None: each of them does.
        """
        self.nodes: OrderedDict[str, Node] = OrderedDict()
        self._incarnation = secrets.token_hex(16)  # of this gateway
        self._door, self._tls = door, tls
        self._fingerprint = fingerprint
        self._supervisor = supervisor
        self._timeout_seconds = timeout_seconds
        self._routing = NodeRouting(routing)
        self._size = FleetSize(ttft_target_seconds, routing)
        self._leadership = leadership
        self._hello = wire.Hello(wants_arrivals=ttft_target_seconds is not None)
        self._session_moves = SessionMoves(self._routing)
        self._others = OtherGateways()
        self._lobby = Lobby(wait_seconds)
        self._lost: list[RemoteEngine] = []  # whose tasks are still to be awaited
        self._ended_stats: EngineStats | None = None  # counters of engines that are gone
        self._num_stale = 0  # of engines that are gone
        self._info: EngineInfo | None = None
        self._settled = asyncio.Event()
        self._is_closed = False
        self._resources = contextlib.AsyncExitStack()
        self._limited = LimitedLog(_log)

    # ---- what it is ----

    @property
    def info(self) -> EngineInfo:
        """Also while no node is there: requests wait for one."""
        self._check_alive()
        assert self._info is not None
        return self._info

    @property
    def is_alive(self) -> bool:
        """A node can take requests now. Without one they are taken all the same, and wait."""
        return not self._is_closed and any(map(self._is_usable, self.nodes.values()))

    @property
    def death(self) -> str | None:
        return "The server is shutting down." if self._is_closed else None

    @property
    def trouble(self) -> str | None:
        found = [f"node {node.name} is {node.condition}" for node in self.nodes.values() if not self._is_usable(node)]
        if not self.is_alive:
            return f"No node can take requests: they wait ({len(self._lobby)} do). {'; '.join(found)}".strip()
        return f"{len(found)} of {len(self.nodes)} nodes take no requests: {'; '.join(found)}." if found else None

    @property
    def num_restarts(self) -> int:
        return sum(max(0, node.num_incarnations - 1) for node in self.nodes.values())

    def stats(self) -> EngineStats | None:
        """None before the first node has come."""
        lines = self._lines()
        living = [line.last_stats or NO_STATS for line in lines]
        num_stale = self._num_stale + sum(line.num_stale for line in lines)
        num_stale += sum(node.num_stale for node in self.nodes.values())
        ended = [] if self._ended_stats is None else [self._ended_stats]
        ended += [NO_STATS] if self.nodes and not ended else []
        nodes = [NodeStats(node.name, node.condition, self._num_open(node)) for node in self.nodes.values()]
        found = sum_stats(living, ended, nodes, num_stale, dict(self._routing.num_routed))
        if found is not None and self._size.desired is not None and self._leads:
            found = msgspec.structs.replace(found, num_desired_nodes=self._size.desired)
        if found is not None:
            for request in self._lobby.requests():
                found.num_waiting[request.request_class] += 1
        return found

    def listen_to_others(self, listener: Callable[[OthersWork], None]) -> None:
        """listener: hears of other gateways' work, four times a second while there is any and once more then."""
        self._others.listener = listener

    def _lines(self) -> list[EngineLine]:
        return [node.engine.line for node in self.nodes.values() if node.engine is not None and node.engine.is_usable]

    def status(self) -> FleetStatus:
        """For operators."""
        nodes = [node_status(node) for node in self.nodes.values()]
        stats = self.stats()
        num_stale = 0 if stats is None else stats.num_stale_incarnations
        num_waiting = sum(1 for _ in self._lobby.requests())
        if self._leadership is None:
            return FleetStatus(nodes, num_waiting, num_stale)
        return FleetStatus(nodes, num_waiting, num_stale, self._leadership.leader, self._leadership.is_leader)

    def _num_open(self, node: Node) -> int:
        return 0 if node.engine is None else node.engine.line.router.num_open

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineDeadError("The server is shutting down.")
        if self._info is None:
            raise EngineDeadError("No node has come yet.", code="starting")

    # ---- its life ----

    async def start(self) -> None:
        """Returns when the first node is ready."""
        await self._resources.enter_async_context(self._supervisor.running("fleet_door", self._keep_door_open))
        await self._resources.enter_async_context(self._supervisor.running("fleet_watch", self._watch))
        await self._resources.enter_async_context(self._supervisor.running("fleet_size", self._keep_size))
        if self._leadership is not None:
            await self._resources.enter_async_context(self._supervisor.running("fleet_leader", self._keep_leading))
        await self._settled.wait()

    async def close(self) -> None:
        """The nodes' engines go on: other gateways may need them."""
        self._is_closed = True
        self._settled.set()
        await self._resources.aclose()
        self._door.close()
        self._lobby.close()
        for node in self.nodes.values():
            if node.peer is not None:
                node.peer.close()
            if node.engine is not None:
                await node.engine.close()
        for engine in self._lost:
            await engine.close()

    async def _keep_door_open(self) -> None:
        await self._door.keep_open(self)

    async def _keep_size(self) -> None:
        await self._size.keep(self._for_size)

    async def _keep_leading(self) -> None:
        assert self._leadership is not None
        await self._leadership.keep(self._size.count_soon)

    @property
    def _leads(self) -> bool:
        return self._leadership is None or self._leadership.is_leader

    def _for_size(self) -> tuple[EngineInfo, float] | None:
        stats = self.stats()
        if self._info is None or stats is None or not self._leads:
            return None
        num_finished = sum(stats.num_finished)
        return self._info, stats.num_output_tokens / num_finished if num_finished else UNKNOWN_OUTPUTS

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(TURN_SECONDS)
            for node in list(self.nodes.values()):
                node.pass_turn()
                if node.has_gone_silent:
                    self._lose(node, "the node has said nothing for two seconds")
                if node.peer is None and node.engine is not None and node.engine.death is not None:
                    self._put_away(node, node.engine)  # no manager says what has become of it
                self._move_streams(node)
                self._learn_of_others(node)
            self._session_moves.pass_turn()
            self._others.look(self._lines())
            await self._await_lost()
            self._serve_waiting()
            self._lobby.pass_turn()

    def _learn_of_others(self, node: Node) -> None:
        """What other gateways sent there."""
        if node.engine is None or not self._is_usable(node):
            return
        if sessions := node.engine.line.take_sessions():
            self._routing.note_others(node.name, sessions)
        if arrivals := node.engine.line.take_arrivals():
            self._size.note_others(arrivals)

    async def _await_lost(self) -> None:
        lost, self._lost = self._lost, []
        for engine in lost:
            await engine.close()

    # ---- nodes ----

    def on_hello(self, peer: FleetPeer, hello: NodeHello) -> None:
        if hello.fingerprint != self._fingerprint:
            self._limited.warning("model", "node %s is refused: it serves another model", hello.node)
            peer.send(Refused("The gateway serves another model, or another version of it."))
            return
        node = self.nodes.get(hello.node)
        if node is None:
            self._forget_one()
            self.nodes[hello.node] = Node(hello.node, hello, peer)
            _log.info("node %s has come from %s", hello.node, peer.address)
        elif not self._take_place(node, peer, hello):
            return
        peer.send(Welcome(self._incarnation))

    def _take_place(self, node: Node, peer: FleetPeer, hello: NodeHello) -> bool:
        """A name has one holder: the one that was started last. Clocks tell, so that all gateways say the same."""
        is_same = node.hello.incarnation == hello.incarnation
        if not is_same and node.condition is not NodeCondition.GONE and hello.started < node.hello.started:
            peer.send(Superseded())
            return False
        if node.peer is not None and node.peer is not peer:
            if not is_same:
                _log.warning("node %s: a newer one has the name; the one from %s ends", node.name, node.peer.address)
                node.peer.send(Superseded())
            node.peer.close()
        if not is_same:
            node.is_draining = False
            node.seat = None
        node.peer, node.hello = peer, hello
        node.note_heard()
        return True

    def on_state(self, peer: FleetPeer, state: NodeState) -> None:
        node = next((node for node in self.nodes.values() if node.peer is peer), None)
        if node is None:  # refused, or superseded: what it says is of no node
            self._num_stale += 1
            return
        peer.send(Heard())
        node.note_heard()
        seat = node.seat = state.seat
        if seat.last_death and (node.engine is None or not node.engine.is_usable):
            node.last_death = seat.last_death
        self._follow(node)
        self._move_streams(node)
        if state.is_leaving:
            self._lose(node, "it has left")

    def _follow(self, node: Node) -> None:
        """The gateway's connection is to the engine that the node has now."""
        seat, engine = node.seat, node.engine
        assert seat is not None
        if engine is not None and engine.incarnation != seat.incarnation:
            engine.shut_down("its node has another engine")
        if engine is not None and engine.death is not None:
            self._put_away(node, engine)
        if node.engine is None and seat.state in (SeatState.READY, SeatState.DRAINING):
            self._expect_incarnation(node, seat.incarnation)
            node.engine = RemoteEngine(
                node.name,
                seat.endpoint,
                seat.incarnation,
                self._tls,
                self._timeout_seconds,
                lambda reason: self._fence(node, seat.incarnation, reason),
                lambda: self._on_ready(node),
                self._hello,
            )

    def _expect_incarnation(self, node: Node, incarnation: str) -> None:
        if node.incarnation != incarnation:
            node.incarnation = incarnation
            node.num_incarnations += 1

    def on_end(self, peer: FleetPeer) -> None:
        """Of a node manager. Its engine serves on, as long as it answers; another manager will adopt it."""
        for node in self.nodes.values():
            if node.peer is peer:
                node.peer = None
                _log.warning("node %s: its manager has hung up", node.name)
                if node.condition is NodeCondition.GONE:
                    self._lose(node, "its manager has hung up")

    def drain(self, order: DrainNode) -> str:
        node = self.nodes.get(order.node)
        if node is None:
            return f"there is no node {order.node}"
        if node.peer is None:
            return f"node {order.node} is {node.condition}: nobody is there to drain it"
        node.is_draining = True
        self._move_streams(node)
        seconds = order.deadline_seconds
        others = [other for other in self.nodes.values() if self._is_usable(other)]
        self._session_moves.begin(node, others, seconds, lambda: self._let_go(node, seconds))
        return ""

    def _let_go(self, node: Node, seconds: float) -> None:
        if node.peer is not None:
            node.peer.send(Drain(seconds))

    def _move_streams(self, node: Node) -> None:
        """Of a draining node, if another one can go on with them: those that have who goes on with them."""
        if node.condition is NodeCondition.DRAINING and node.engine is not None and self.is_alive:
            node.engine.line.move_all(f"Node {node.name} is drained.")

    def _on_ready(self, node: Node) -> None:
        assert node.engine is not None
        self._info = node.engine.line.info
        node.note_heard()
        gives_blocks = peer_source(node) is not None
        machine = node.hello.machine
        self._routing.join(node.name, node.engine.incarnation, self._info, machine, gives_blocks=gives_blocks)
        _log.info("node %s serves: %s on %s", node.name, self._info.dtype, self._info.device)
        self._settled.set()
        self._serve_waiting()

    def _fence(self, node: Node, incarnation: str, reason: str) -> None:
        """An engine that hangs is killed by who can."""
        node.last_death = reason
        _log.error("node %s is fenced: %s", node.name, reason)
        if node.peer is not None:
            node.peer.send(Fence(incarnation, reason))

    def _lose(self, node: Node, reason: str) -> None:
        _log.warning("node %s is gone: %s", node.name, reason)
        node.last_death = reason
        if node.peer is not None:
            node.peer.close()
            node.peer = None
        engine = node.engine
        if engine is not None:
            engine.lose(reason)
            self._put_away(node, engine)

    def _put_away(self, node: Node, engine: RemoteEngine) -> None:
        """A dead engine."""
        node.engine = None
        node.last_death = engine.death or node.last_death
        self._lost.append(engine)
        self._num_stale += engine.line.num_stale
        if engine.line.last_stats is not None:
            self._ended_stats = add_counters(self._ended_stats, engine.line.last_stats)

    def _forget_one(self) -> None:
        if len(self.nodes) >= MAX_NODES:
            gone = next((node for node in self.nodes.values() if node.condition is NodeCondition.GONE), None)
            if gone is not None:
                del self.nodes[gone.name]
                self._routing.forget(gone.name)

    # ---- requests ----

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        self._check_alive()
        if (only := self._only_node()) is not None:
            stream = self._submit((only, None), requests)
            asyncio.get_running_loop().call_soon(self._note, requests)  # while its engine computes
            return stream
        self._size.note(requests)
        if (chosen := self._choose(requests[0])) is not None:
            return self._submit(chosen, requests)
        return self._lobby.open(requests)

    def _only_node(self) -> Node | None:
        """The one that takes requests, where no other has anything to give either."""
        found = None
        for node in self.nodes.values():
            if node.condition is not NodeCondition.GONE:
                if found is not None:
                    return None
                found = node
        return found if found is not None and self._is_usable(found) else None

    def _note(self, requests: Sequence[EngineRequest]) -> None:
        """They have been submitted where they had to be."""
        self._size.note(requests)
        self._choose(requests[0])

    def node_stats(self) -> dict[str, EngineStats | None]:
        """Of EngineNodes."""
        usable = [node for node in self.nodes.values() if self._is_usable(node)]
        return {node.name: node.engine.line.last_stats for node in usable if node.engine is not None}

    def stream_at(self, node: str, requests: Sequence[EngineRequest]) -> DeltaStream:
        """Of EngineNodes."""
        self._check_alive()
        found = self.nodes.get(node)
        if found is None or found.engine is None or not self._is_usable(found):
            raise EngineDeadError(f"Node {node} takes no requests.")
        self._routing.note_sent(requests[0], node, found.engine.line.last_stats)
        return self._submit((found, None), requests)

    async def advise(self, advisory: Advisory) -> SessionState:
        """An engine that dies meanwhile takes what it knew along: another one is told, if there is one."""
        self._check_alive()
        for _ in range(len(self.nodes)):
            with contextlib.suppress(EngineDeadError):
                return await self._advise(advisory)
        return SessionState(request_id=advisory.request_id, is_known=False)

    async def _advise(self, advisory: Advisory) -> SessionState:
        if advisory.event not in (AdvisoryEvent.TYPING, AdvisoryEvent.AGENT_STEP):
            return await self._tell_holders(advisory)
        node, source = self._choose(advisory) or (None, None)
        if node is None or node.engine is None:
            return SessionState(request_id=advisory.request_id, is_known=False)
        return await node.engine.line.advise(msgspec.structs.replace(advisory, source=source))

    async def _tell_holders(self, advisory: Advisory) -> SessionState:
        """What announces nothing goes where the session is; that it is over, to all that have it."""
        found = [self.nodes[name] for name in self._routing.holders(advisory) if name in self.nodes]
        engines = [node.engine for node in found if self._is_usable(node) and node.engine is not None]
        if not engines and (chosen := self._choose(advisory)) is not None and chosen[0].engine is not None:
            engines = [chosen[0].engine]
        if not engines:
            return SessionState(request_id=advisory.request_id, is_known=False)
        if advisory.event is AdvisoryEvent.RELEASE:
            for engine in engines[1:]:
                engine.line.send(wire.Advise(advisory))  # whose answers nobody waits for
        return await engines[0].line.advise(advisory)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        """Of every node; None if one cannot."""
        self._check_alive()
        engines = [node.engine for node in self.nodes.values() if node.engine is not None and node.engine.is_usable]
        answers = await asyncio.gather(*(engine.line.reset_prefix_cache(request_id) for engine in engines))
        counts = [answer.num_blocks for answer in answers]
        return CacheReset(request_id, None if None in counts else sum(count or 0 for count in counts))

    def _is_usable(self, node: Node) -> bool:
        return node.condition in USABLE and node.engine is not None and node.engine.is_usable

    def _submit(
        self, chosen: _Chosen, requests: Sequence[EngineRequest], opened: DeltaStream | None = None
    ) -> DeltaStream:
        node, source = chosen
        assert node.engine is not None
        if source is not None:
            requests = [msgspec.structs.replace(request, source=source) for request in requests]
        stream = node.engine.line.stream(requests, opened)
        node.num_given += len(requests)
        return stream

    def _choose(self, asked: EngineRequest | Advisory) -> _Chosen | None:
        lasts = self.node_stats()
        draining = [node.name for node in self.nodes.values() if node.condition is NodeCondition.DRAINING]
        engines = {name: self.nodes[name].engine for name in lasts}
        num_open = {name: engine.line.num_open for name, engine in engines.items() if engine is not None}
        found = self._routing.choose(asked, lasts, draining, num_open)
        if found is None:
            return None
        return self.nodes[found.node], None if found.source is None else peer_source(self.nodes[found.source])

    def _serve_waiting(self) -> None:
        """Who came first goes first."""
        while self._lobby and (chosen := self._choose(self._lobby.first)) is not None:
            self._submit(chosen, *self._lobby.take_first())

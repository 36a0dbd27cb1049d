"""One node as a gateway sees it: what it said, when it was last heard, its engine. Time is counted in turns."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from gateway.fleet.remote_engine import RemoteEngine
from gateway.protocol.server.status import NodeStatus
from schedcore.api.fleet_wire import EngineSeat, NodeHello, SeatState
from schedcore.api.types import PeerSource

if TYPE_CHECKING:
    from gateway.fleet.fleet_peer import FleetPeer

TURN_SECONDS = 0.25  # of our own clock: while this process is stopped it blames nobody
SUSPECT_TURNS, GONE_TURNS = 4, 8  # of silence


class NodeCondition(enum.StrEnum):
    UP = "up"
    STARTING = "starting"  # its engine is not ready, or not yet connected
    SUSPECT = "suspect"  # silent: no new requests
    UNMANAGED = "unmanaged"  # its node manager is gone; its engine serves on
    DRAINING = "draining"
    GONE = "gone"


USABLE = (NodeCondition.UP, NodeCondition.UNMANAGED)


class Node:
    def __init__(self, name: str, hello: NodeHello, peer: FleetPeer) -> None:
        self.name = name
        self.hello = hello
        self.peer: FleetPeer | None = peer
        self.seat: EngineSeat | None = None
        self.engine: RemoteEngine | None = None
        self.num_silent = 0  # turns
        self.is_draining = False  # asked to, here
        self.num_stale = 0  # messages of incarnations that are over
        self.incarnation = ""  # of its engine, the last one
        self.num_incarnations = 0  # that this gateway has seen
        self.num_given = 0  # requests
        self.last_death = ""  # of its engine, or of the node, and why
        self._num_heard = 0  # of its engine's messages, at the last turn

    @property
    def condition(self) -> NodeCondition:
        is_serving = self.engine is not None and self.engine.is_usable
        if self.peer is None:
            return NodeCondition.UNMANAGED if is_serving else NodeCondition.GONE
        if self.num_silent >= SUSPECT_TURNS:
            return NodeCondition.SUSPECT
        if self.is_draining or (self.seat is not None and self.seat.state is SeatState.DRAINING):
            return NodeCondition.DRAINING
        return NodeCondition.UP if is_serving else NodeCondition.STARTING

    def note_heard(self) -> None:
        self.num_silent = 0

    def pass_turn(self) -> None:
        """What has arrived is taken in before it is judged. A long step is no silence, nor is a manager that hangs:
        either of the two speaks for the node."""
        if self.peer is not None:
            self.peer.read()
        if self.engine is not None:
            self.engine.line.read()
            if self.engine.line.num_heard != self._num_heard:
                self._num_heard = self.engine.line.num_heard
                self.num_silent = 0
                return
        self.num_silent += 1

    @property
    def has_gone_silent(self) -> bool:
        """Its manager is connected, and nothing has come for too long. Without one, its engine's line has a limit."""
        return self.peer is not None and self.num_silent > GONE_TURNS


def peer_source(node: Node) -> PeerSource | None:
    """Where others get its cache; None: nowhere."""
    seat, engine = node.seat, node.engine
    if seat is None or engine is None or not engine.is_usable or not seat.block_endpoint:
        return None
    return PeerSource(seat.block_endpoint, engine.incarnation)


def node_status(node: Node) -> NodeStatus:
    seat, engine = node.seat, node.engine
    stats = None if engine is None else engine.line.last_stats
    return NodeStatus(
        name=node.name,
        condition=node.condition,
        machine=node.hello.machine,
        version=node.hello.version,
        incarnation="" if engine is None else engine.incarnation,
        endpoint="" if engine is None else engine.endpoint,
        pid=0 if seat is None or engine is None else seat.pid,
        is_adopted=seat is not None and seat.is_adopted,
        num_given=node.num_given,
        num_open=0 if engine is None else engine.line.router.num_open,
        num_running=0 if stats is None else sum(stats.num_running),
        num_waiting=0 if stats is None else sum(stats.num_waiting),
        num_sessions=0 if stats is None else stats.num_sessions,
        pulled_bytes=0 if stats is None else stats.num_pulled_blocks * stats.block_bytes,
        num_restarts=0 if seat is None else seat.num_restarts,
        last_death=(engine.death if engine is not None else None) or node.last_death,
    )

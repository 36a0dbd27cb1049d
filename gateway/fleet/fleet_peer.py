"""Somebody connected to a gateway's fleet port: a node, or an operator. The first message says which."""

from __future__ import annotations

import asyncio
from typing import Protocol

import msgspec

from gateway.base.limited_log import LimitedLog
from gateway.engine.frame_line import FrameLine
from schedcore.api import fleet_wire
from schedcore.api.cluster_tls import GATEWAY, NODE, OPERATOR
from schedcore.api.fleet_wire import DrainNode, FromGateway, NodeHello, NodeState
from schedcore.api.frame_socket import FrameSocket

HELLO_SECONDS = 5.0  # that a peer may take to say what it is


class Fleet(Protocol):
    """Who the peers speak to."""

    def on_hello(self, peer: FleetPeer, hello: NodeHello) -> None: ...
    def on_state(self, peer: FleetPeer, state: NodeState) -> None: ...
    def on_end(self, peer: FleetPeer) -> None: ...
    def drain(self, order: DrainNode) -> str:
        """What is wrong with it; empty: it is done."""


class FleetPeer:
    def __init__(self, connection: FrameSocket, role: str | None, address: str, fleet: Fleet, log: LimitedLog) -> None:
        """role: that its certificate proves; None: the network is trusted, and it may be any."""
        self.address = address
        self._role, self._fleet, self._log = role, fleet, log
        self._is_node = False
        self._line = FrameLine(connection, self._on_frames, self._on_end)
        self._timer = asyncio.get_running_loop().call_later(HELLO_SECONDS, self._refuse, "it said nothing")

    def send(self, message: FromGateway) -> None:
        self._line.send(fleet_wire.encode(message))

    def read(self) -> None:
        """Takes in what has arrived by now."""
        self._line.read()

    def close(self) -> None:
        """Idempotent; the fleet is not told."""
        self._timer.cancel()
        self._line.close()

    def _on_frames(self, frames: list[bytes]) -> None:
        for frame in frames:
            if not self._line.is_open:
                return
            try:
                message = fleet_wire.decode_to_gateway(frame)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._refuse(f"it sent what is no message: {error}")
                return
            self._on_message(message)

    def _on_message(self, message: fleet_wire.ToGateway) -> None:
        match message:
            case NodeHello() if not self._is_node and self._role in (None, NODE):
                self._timer.cancel()
                self._is_node = True
                self._fleet.on_hello(self, message)
            case NodeState() if self._is_node:
                self._fleet.on_state(self, message)
            case DrainNode() if not self._is_node and self._role in (None, OPERATOR, GATEWAY):
                self._timer.cancel()
                self.send(fleet_wire.Answered(self._fleet.drain(message)))
            case _:
                self._refuse(f"it may not send {type(message).__name__}")

    def _on_end(self, error: ConnectionError) -> None:
        self._timer.cancel()
        if self._is_node:
            self._fleet.on_end(self)

    def _refuse(self, why: str) -> None:
        self._log.warning("peer", "%s is hung up on: %s", self.address, why)
        self.close()
        if self._is_node:
            self._fleet.on_end(self)

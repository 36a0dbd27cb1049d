"""A node's connection to one gateway at one address: dialed again whenever it ends, or has fallen silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

import msgspec

from gateway.base.limited_log import LimitedLog
from gateway.engine.frame_line import FrameLine
from gateway.fleet.network import dial
from schedcore.api import fleet_wire
from schedcore.api.cluster_tls import GATEWAY, ClusterTls
from schedcore.api.fleet_wire import (
    HEARTBEAT_SECONDS,
    MAX_FLEET_FRAME_BYTES,
    FromGateway,
    NodeHello,
    NodeState,
    Refused,
    Superseded,
    Welcome,
)

DIAL_SECONDS = 2.0
SILENCE_SECONDS = 2.0  # of a gateway: then the connection is dead, whatever it seems to be
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.1, 1.5  # before the next try; doubles
REFUSED_SECONDS = 10.0  # before a gateway that would not have us is asked again

_log = logging.getLogger("hocket.node")


class GatewayDialer:
    def __init__(
        self,
        endpoint: str,
        tls: ClusterTls | None,
        hello: NodeHello,
        state: Callable[[], NodeState],
        on_message: Callable[[FromGateway], None],
        is_reached_elsewhere: Callable[[GatewayDialer], bool],
    ) -> None:
        """endpoint: tcp://address:port. is_reached_elsewhere: another one is connected to this one's `gateway`."""
        self.endpoint = endpoint
        self.gateway = ""  # which this was at that address when it was last welcome
        self.is_wanted = True  # once it is not, it is dialed no more
        self._is_reached_elsewhere = is_reached_elsewhere
        self._tls, self._hello, self._state, self._on_message = tls, hello, state, on_message
        self._line: FrameLine | None = None
        self._is_welcome = False
        self._pause = FIRST_PAUSE_SECONDS
        self._heard = 0.0
        self._wake = asyncio.Event()
        self._limited = LimitedLog(_log)

    @property
    def is_connected(self) -> bool:
        return self._is_welcome

    def tell(self) -> None:
        """The node's state, now: something has changed."""
        if self._is_welcome and self._line is not None:
            self._line.send(fleet_wire.encode(self._state()))

    async def keep_connected(self) -> None:
        """As long as it is wanted, and then until the connection ends."""
        while self.is_wanted:
            if self._is_reached_elsewhere(self):  # it has one connection to a node, and hangs up on the older one
                await asyncio.sleep(MAX_PAUSE_SECONDS)
                continue
            try:
                async with asyncio.timeout(DIAL_SECONDS):
                    connection = await dial(self.endpoint, self._tls, GATEWAY, MAX_FLEET_FRAME_BYTES)
                self._line = FrameLine(connection, self._on_frames, lambda _: self._wake.set())
                await self._converse(self._line)
            except OSError as error:
                why = error or type(error).__name__
                self._limited.warning("dial", "the gateway at %s cannot be reached: %s", self.endpoint, why)
            finally:
                if self._line is not None:
                    self._line.close()
                self._is_welcome = False
            await asyncio.sleep(self._pause)
            self._pause = min(MAX_PAUSE_SECONDS, self._pause * 2)

    async def _converse(self, line: FrameLine) -> None:
        self._heard = time.monotonic()
        line.send(fleet_wire.encode(self._hello))
        while line.is_open:
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT_SECONDS):
                    await self._wake.wait()
            line.read()  # what has come while this process was stopped counts
            if time.monotonic() - self._heard > SILENCE_SECONDS:
                _log.warning("the gateway at %s has said nothing for %g seconds", self.endpoint, SILENCE_SECONDS)
                return
            self.tell()

    def _on_frames(self, frames: list[bytes]) -> None:
        self._heard = time.monotonic()
        for frame in frames:
            try:
                message = fleet_wire.decode_from_gateway(frame)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self._limited.warning("frame", "the gateway at %s sent what is no message: %s", self.endpoint, error)
                self._hang_up()
                return
            match message:
                case Welcome(gateway):
                    self.gateway = gateway
                    self._is_welcome, self._pause = True, FIRST_PAUSE_SECONDS
                    _log.info("part of the fleet of the gateway at %s", self.endpoint)
                    self.tell()
                case Refused(reason):
                    _log.error("the gateway at %s refuses this node: %s", self.endpoint, reason)
                    self._pause = REFUSED_SECONDS
                    self._hang_up()
                case Superseded():
                    self._pause = REFUSED_SECONDS
                    self._hang_up()
                    self._on_message(message)
                case _:
                    self._on_message(message)

    def _hang_up(self) -> None:
        if self._line is not None:
            self._line.close()
        self._wake.set()

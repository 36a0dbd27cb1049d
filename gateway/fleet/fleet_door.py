"""`--fleet-listen`: the port at which nodes come to a gateway, and operators."""

from __future__ import annotations

import asyncio
import logging
import socket

from gateway.base.limited_log import LimitedLog
from gateway.fleet.fleet_peer import Fleet, FleetPeer
from gateway.fleet.network import welcome
from schedcore.api.cluster_tls import ROLES, ClusterTls
from schedcore.api.fleet_wire import MAX_FLEET_FRAME_BYTES
from schedcore.api.frame_socket import listen, network_address, network_endpoint

HANDSHAKE_SECONDS = 5.0
MAX_HANDSHAKES = 64  # under way at a time; more are hung up on

_log = logging.getLogger("hocket.gateway")


class FleetDoor:
    def __init__(self, endpoint: str, tls: ClusterTls | None) -> None:
        """Binds; raises OSError, ValueError."""
        self._listener = listen(endpoint)
        self._tls = tls
        self.endpoint = network_endpoint(network_address(endpoint)[0], self._listener.getsockname()[1])
        self._limited = LimitedLog(_log)
        self._num_handshakes = 0

    async def keep_open(self, fleet: Fleet) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            while True:
                connection, address = await loop.sock_accept(self._listener)
                if self._num_handshakes >= MAX_HANDSHAKES:
                    connection.close()
                    continue
                self._num_handshakes += 1
                shaking = group.create_task(self._welcome(connection, address[0], fleet))
                shaking.add_done_callback(self._on_shaken)

    def close(self) -> None:
        self._listener.close()

    def _on_shaken(self, _: object) -> None:
        self._num_handshakes -= 1

    async def _welcome(self, connection: socket.socket, address: str, fleet: Fleet) -> None:
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                framed, role = await welcome(connection, self._tls, ROLES, MAX_FLEET_FRAME_BYTES)
        except OSError as error:
            why = error or "it said too little"
            self._limited.warning("handshake", "a connection from %s to the fleet's port is refused: %s", address, why)
            return
        FleetPeer(framed, role, address, fleet, self._limited)  # lives by its registration with the loop

"""A node's connections to the gateways of its fleet: a dialer for each address that the names in --gateways have.

Names are looked up again and again, for gateways come and go: one name may be all of them, as that of a Kubernetes
headless service is. An address that no name has any more is dialed no longer, and its connection kept while it lasts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence

from gateway.base.limited_log import LimitedLog
from gateway.node.gateway_dialer import FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS, GatewayDialer
from schedcore.api.cluster_tls import ClusterTls
from schedcore.api.fleet_wire import FromGateway, NodeHello, NodeState
from schedcore.api.frame_socket import network_address, network_endpoint

LOOK_SECONDS = 5.0  # between two looks at a name all of whose addresses are connected; sooner while one is not

_log = logging.getLogger("hocket.node")


async def addresses_of(endpoint: str) -> list[str]:
    """Of tcp://host:port, with an address for a host each. Raises OSError."""
    host, port = network_address(endpoint)
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({network_endpoint(str(address[0]), port) for *_, address in found})


class GatewayDialers:
    def __init__(
        self,
        endpoints: Sequence[str],
        tls: ClusterTls | None,
        hello: NodeHello,
        state: Callable[[], NodeState],
        on_message: Callable[[FromGateway], None],
        look_up: Callable[[str], Awaitable[list[str]]] = addresses_of,
    ) -> None:
        """endpoints: tcp://host:port, a host being an address or a name of any number of them."""
        self._endpoints = endpoints
        self._tls, self._hello, self._state, self._on_message = tls, hello, state, on_message
        self._look_up = look_up
        self._found: dict[str, list[str]] = {}  # addresses by endpoint, as last looked up
        self._dialers: dict[str, tuple[GatewayDialer, asyncio.Task[None]]] = {}  # by address
        self._limited = LimitedLog(_log)

    def tell(self) -> None:
        """The node's state, now: something has changed."""
        for dialer, _ in self._dialers.values():
            dialer.tell()

    async def keep_connected(self) -> None:
        async with asyncio.TaskGroup() as group:
            for endpoint in self._endpoints:
                group.create_task(self._follow(endpoint, group))

    async def _follow(self, endpoint: str, group: asyncio.TaskGroup) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                self._found[endpoint] = await self._look_up(endpoint)
            except OSError as error:  # what was found before is dialed on
                self._limited.warning(endpoint, "%s cannot be looked up: %s", endpoint, error)
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
            else:
                self._dial_what_is_found(group)
                if _is_address(endpoint):
                    return
                all_there = all(map(self._is_there, self._found[endpoint]))
                pause = LOOK_SECONDS if all_there else min(MAX_PAUSE_SECONDS, pause * 2)
            await asyncio.sleep(pause)

    def _dial_what_is_found(self, group: asyncio.TaskGroup) -> None:
        wanted = {address for found in self._found.values() for address in found}
        self._dialers = {
            address: (dialer, task) for address, (dialer, task) in self._dialers.items() if not task.done()
        }
        for address, (dialer, _) in self._dialers.items():
            dialer.is_wanted = address in wanted
        for address in wanted - self._dialers.keys():
            dialer = GatewayDialer(
                address, self._tls, self._hello, self._state, self._on_message, self._is_reached_elsewhere
            )
            self._dialers[address] = dialer, group.create_task(dialer.keep_connected())

    def _is_there(self, address: str) -> bool:
        dialer, _ = self._dialers[address]
        return dialer.is_connected or self._is_reached_elsewhere(dialer)

    def _is_reached_elsewhere(self, asking: GatewayDialer) -> bool:
        """The gateway that this one has reached is connected at another address: a name may have both families."""
        others = (dialer for dialer, _ in self._dialers.values() if dialer is not asking and dialer.is_connected)
        return any(other.gateway == asking.gateway for other in others) if asking.gateway else False


def _is_address(endpoint: str) -> bool:
    try:
        ipaddress.ip_address(network_address(endpoint)[0])
    except ValueError:
        return False
    return True

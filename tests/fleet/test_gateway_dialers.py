"""A node and names that are several gateways, which come and go. Gateways are real, names are scripts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from fakes.eventually import eventually
from gateway.base.supervision import Supervisor
from gateway.fleet.fleet_door import FleetDoor
from gateway.fleet.fleet_engine import FleetEngine
from gateway.fleet.node import NodeCondition
from gateway.node import gateway_dialer, gateway_dialers
from gateway.node.gateway_dialers import GatewayDialers, addresses_of
from schedcore.api.cluster_tls import GATEWAY, NODE, ClusterTls
from schedcore.api.fleet_wire import EngineSeat, NodeHello, NodeState, SeatState
from schedcore.api.frame_socket import network_address

NAME = "tcp://gateways.example:7000"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_dialers, "LOOK_SECONDS", 0.02)
    for module in (gateway_dialers, gateway_dialer):
        monkeypatch.setattr(module, "FIRST_PAUSE_SECONDS", 0.01)
        monkeypatch.setattr(module, "MAX_PAUSE_SECONDS", 0.02)


@asynccontextmanager
async def gateway(address: str, tls: ClusterTls | None = None) -> AsyncIterator[FleetEngine]:
    """address: tcp://host:port; port 0: any free one."""
    engine = FleetEngine(FleetDoor(address, tls), tls, "fingerprint", Supervisor(), 60.0, 0.5)
    starting = asyncio.create_task(engine.start())
    try:
        yield engine
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()


@asynccontextmanager
async def node(
    *endpoints: str,
    look_up: Callable[[str], Awaitable[list[str]]] = addresses_of,
    tls: ClusterTls | None = None,
) -> AsyncIterator[GatewayDialers]:
    hello = NodeHello("a", "incarnation", 1.0, "fingerprint")
    state = NodeState(EngineSeat(SeatState.STARTING))
    dialers = GatewayDialers(endpoints, tls, hello, lambda: state, lambda _: None, look_up)
    task = asyncio.create_task(dialers.keep_connected())
    try:
        yield dialers
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def knows(engine: FleetEngine) -> bool:
    return "a" in engine.nodes and engine.nodes["a"].peer is not None


class Names:
    """What is looked up, as it is changed; none: there is no such name."""

    def __init__(self, *addresses: str) -> None:
        self.addresses = list(addresses)
        self.num_asked = 0

    async def __call__(self, endpoint: str) -> list[str]:
        assert endpoint == NAME
        self.num_asked += 1
        if not self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return list(self.addresses)


@pytest.fixture(params=["plain", "tls"])
def security(request: pytest.FixtureRequest) -> Iterator[tuple[ClusterTls | None, ClusterTls | None]]:
    """Of gateways, and of nodes."""
    if request.param == "plain":
        return None, None
    folder: Path = request.getfixturevalue("cluster_dir")
    return ClusterTls(folder, GATEWAY), ClusterTls(folder, NODE)


async def test_every_address_of_a_name_is_a_gateway_and_those_that_come_are_found(
    security: tuple[ClusterTls | None, ClusterTls | None],
) -> None:
    of_gateways, of_nodes = security
    async with AsyncExitStack() as stack:
        engines = [await stack.enter_async_context(gateway(f"tcp://127.0.0.{i}:0", of_gateways)) for i in (2, 3, 4)]
        one, two, three = (engine._door.endpoint for engine in engines)
        names = Names()  # that do not exist yet
        await stack.enter_async_context(node(NAME, look_up=names, tls=of_nodes))
        await eventually(lambda: names.num_asked >= 3)
        names.addresses = [one, two]
        await eventually(lambda: knows(engines[0]) and knows(engines[1]))
        assert not knows(engines[2])
        names.addresses = [one, two, three]
        await eventually(lambda: knows(engines[2]))
        names.addresses = []  # its server is away
        asked = names.num_asked
        await eventually(lambda: names.num_asked >= asked + 3)
        assert all(map(knows, engines))


async def test_an_address_that_the_name_has_no_more_is_kept_while_it_serves_and_then_dialed_no_more() -> None:
    async with gateway("tcp://127.0.0.2:0") as stays, gateway("tcp://127.0.0.3:0") as goes:
        endpoints = [stays._door.endpoint, goes._door.endpoint]
        names = Names(*endpoints)
        async with node(NAME, look_up=names) as dialers:
            await eventually(lambda: knows(stays) and knows(goes))
            peer = goes.nodes["a"].peer
            names.addresses = endpoints[:1]
            asked = names.num_asked
            await eventually(lambda: names.num_asked >= asked + 3)
            assert goes.nodes["a"].peer is peer
            await goes.close()
            await eventually(lambda: list(dialers._dialers) == endpoints[:1])
            assert knows(stays)


async def test_who_is_at_the_address_of_a_gateway_without_its_certificate_is_no_gateway(
    cluster_dir: Path, foreign_dir: Path
) -> None:
    async with (
        gateway("tcp://127.0.0.2:0", ClusterTls(cluster_dir, GATEWAY)) as ours,
        gateway("tcp://127.0.0.3:0", ClusterTls(foreign_dir, GATEWAY)) as foreign,
        gateway("tcp://127.0.0.4:0", ClusterTls(cluster_dir, NODE)) as other_role,
    ):
        names = Names(*(engine._door.endpoint for engine in (ours, foreign, other_role)))
        async with node(NAME, look_up=names, tls=ClusterTls(cluster_dir, NODE)):
            await eventually(lambda: knows(ours))
            asked = names.num_asked
            await eventually(lambda: names.num_asked >= asked + 5)
            assert not knows(foreign)
            assert not knows(other_role)


async def test_a_gateway_that_two_addresses_reach_has_one_connection_and_the_other_when_that_is_cut() -> None:
    async with gateway("tcp://0.0.0.0:0") as engine:
        port = network_address(engine._door.endpoint)[1]
        names = Names(f"tcp://127.0.0.1:{port}", f"tcp://127.0.0.2:{port}")
        async with node(NAME, look_up=names) as dialers:

            def connected() -> list[str]:
                return [address for address, (dialer, _) in dialers._dialers.items() if dialer.is_connected]

            def has_settled() -> bool:
                known = [dialer.gateway for dialer, _ in dialers._dialers.values()]
                return len(known) == 2 and all(known) and len(connected()) == 1

            await eventually(has_settled)
            used, peer = connected(), engine.nodes["a"].peer
            for _ in range(3):
                asked = names.num_asked
                await eventually(lambda asked=asked: names.num_asked >= asked + 3)  # type: ignore[misc]
                assert (connected(), engine.nodes["a"].peer) == (used, peer)
            names.addresses = [address for address in names.addresses if address not in used]
            asked = names.num_asked
            await eventually(lambda: names.num_asked >= asked + 2)
            assert peer is not None
            peer.close()
            await eventually(lambda: connected() == names.addresses and knows(engine))
            assert engine.nodes["a"].condition is not NodeCondition.GONE


async def test_names_are_looked_up_as_the_machine_does_and_addresses_need_not_be() -> None:
    async with gateway("tcp://127.0.0.1:0") as by_name, gateway("tcp://127.0.0.5:0") as by_address:
        port = network_address(by_name._door.endpoint)[1]
        assert f"tcp://127.0.0.1:{port}" in await addresses_of(f"tcp://localhost:{port}")
        async with node(f"tcp://localhost:{port}", by_address._door.endpoint):
            await eventually(lambda: knows(by_name) and knows(by_address))
    assert await addresses_of("tcp://[::1]:7000") == ["tcp://[::1]:7000"]

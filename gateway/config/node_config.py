"""The configuration of `hocket node`: frozen, validated once, every setting declared where its field is."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import msgspec

from gateway.config.config import ENGINES, check_exposure
from schedcore.api.cluster_tls import is_loopback
from schedcore.api.frame_socket import NETWORK_SCHEME, network_address
from schedcore.api.setting import Flag, OneOf, Range, check
from schedcore.peers.block_transport import BLOCK_TRANSPORTS, NIXL, TCP

_node = partial(Flag, "node")


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    gateways: Annotated[
        tuple[str, ...],
        _node(
            "of the fleet, each at its --fleet-listen, or a name that has all their addresses; repeatable or separated "
            "by commas",
            "HOST:PORT",
        ),
    ]
    name: Annotated[  # a second node of that name supersedes the first
        str, _node("of this node, one of its own in the fleet (default: the machine's)", "NAME")
    ]
    run_dir: Annotated[  # a node manager that finds a running engine described there adopts it
        str, _node("where it keeps its engine's description, socket and log (default: {default})", "DIR")
    ] = "hocket-node"
    listen: Annotated[
        str, _node("where gateways reach the engine; port 0 for any free one (default: {default})", "HOST:PORT")
    ] = "127.0.0.1:0"
    listen_blocks: Annotated[
        str | None, _node("where other nodes get cached blocks (default: --listen's host, any free port)", "HOST:PORT")
    ] = None
    block_transport: Annotated[  # nixl: UCX listens, and whoever reaches it is not asked who it is
        str,
        _node("tcp, or nixl where it is installed at both ends, in a network that nobody else is in (docs/fleet.md)"),
        OneOf(BLOCK_TRANSPORTS),
    ] = TCP
    advertise: Annotated[
        str | None, _node("the host of that, as gateways see it (default: --listen's, or this machine's name)", "HOST")
    ] = None
    cluster_dir: Annotated[
        str | None, _node("the cluster's certificates: ca.pem and node.pem (`hocket fleet init`)", "DIR")
    ] = None
    insecure_network: Annotated[
        bool, _node("plain TCP beyond this machine: whoever reaches the ports may use the engine (default: {default})")
    ] = False
    engine: Annotated[str, _node("that computes (default: {default})"), OneOf(tuple(ENGINES))] = "hocket"
    vllm_python: Annotated[
        str | None, _node("of the environment that has vLLM and hocket-server (default: this one)", "FILE")
    ] = None
    drain_timeout_ms: Annotated[  # also after SIGTERM
        float, _node("for open requests to end when the node is drained (default: {default})", "N"), Range(0)
    ] = 60_000.0

    def __post_init__(self) -> None:
        check(self)
        if not self.gateways:
            raise ValueError("gateways must name at least one")
        for gateway in self.gateways:
            network_address(NETWORK_SCHEME + gateway)
        if not self.name or len(self.name) > 200:
            raise ValueError("name must have 1 to 200 characters")
        addresses = (*self.gateways, self.listen, self.blocks_address)
        hosts = {network_address(NETWORK_SCHEME + address)[0] for address in addresses}
        check_exposure(hosts, self.cluster_dir, is_insecure=self.insecure_network)
        if self.block_transport == NIXL and not self.insecure_network and not all(map(is_loopback, hosts)):
            raise ValueError("beyond this machine block_transport nixl needs insecure_network: its ports ask nobody")

    @property
    def blocks_address(self) -> str:
        """HOST:PORT"""
        return self.listen_blocks or f"{self.listen.rpartition(':')[0]}:0"

"""What an engine of a fleet has beside its tiers: peers, to whom it gives cached blocks and from whom it has them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from schedcore._core import Scheduler
from schedcore.api.cluster_tls import ClusterTls, is_loopback
from schedcore.api.frame_socket import network_address
from schedcore.peers.block_server import BlockServer
from schedcore.peers.block_transport import NIXL, TCP, BlockTransport
from schedcore.peers.block_window import WindowMaker
from schedcore.peers.loop_calls import LoopCalls
from schedcore.peers.nixl_window import NixlWindows, has_nixl
from schedcore.peers.tcp_transport import TcpTransport
from schedcore.peers.window_transport import WindowTransport
from worker.tiers.block_store import TierBlockStore
from worker.tiers.engine_peers import EnginePeers
from worker.tiers.peer_pulls import PeerPulls
from worker.tiers.tier_mover import TierMover

logger = logging.getLogger("worker")


@dataclass(frozen=True, slots=True)
class PeerOptions:
    endpoint: str  # tcp://host:port, where this engine gives blocks; port 0 for any free one
    tls: ClusterTls | None  # None: plain
    incarnation: str  # of this engine
    wake: Callable[[], None]  # makes the loop take a turn soon; thread-safe
    block_transport: str = TCP


def open_peers(
    options: PeerOptions | None, mover: TierMover | None, core: Scheduler, fingerprint: str, block_size: int
) -> EnginePeers | None:
    """None where nobody is a peer, or there is no host tier for blocks to be in. Raises OSError, ValueError."""
    if options is None or mover is None:
        return None
    block_bytes = mover.host.block_bytes
    calls = LoopCalls(options.wake)
    store = TierBlockStore(core, mover.host, mover.disk, calls)
    windows = _windows(options)
    server = BlockServer(options.endpoint, options.tls, store, fingerprint, block_bytes, options.incarnation, windows)
    tcp = TcpTransport(options.tls, fingerprint, block_bytes)
    transport: BlockTransport = tcp if windows is None else WindowTransport(tcp, windows, block_bytes)
    mover.pulls = PeerPulls(transport, mover.host, options.wake)
    return EnginePeers(core, mover.pulls, calls, fingerprint, block_size, server)


def _windows(options: PeerOptions) -> WindowMaker | None:
    if options.block_transport != NIXL:
        return None
    if not has_nixl():
        logger.warning("blocks go over TCP: NIXL is not installed here (pip install 'hocket-server[nixl]')")
        return None
    logger.info("blocks go over NIXL where the peer has it, too")
    return NixlWindows(is_loopback=is_loopback(network_address(options.endpoint)[0]))

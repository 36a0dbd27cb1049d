"""What an engine of a fleet has beside its tiers: peers, to whom it gives cached blocks and from whom it has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from schedcore._core import Scheduler
from schedcore.api.cluster_tls import ClusterTls
from schedcore.peers.block_server import BlockServer
from schedcore.peers.loop_calls import LoopCalls
from schedcore.peers.tcp_transport import TcpTransport
from worker.tiers.block_store import TierBlockStore
from worker.tiers.engine_peers import EnginePeers
from worker.tiers.peer_pulls import PeerPulls
from worker.tiers.tier_mover import TierMover


@dataclass(frozen=True, slots=True)
class PeerOptions:
    endpoint: str  # tcp://host:port, where this engine gives blocks; port 0 for any free one
    tls: ClusterTls | None  # None: plain
    incarnation: str  # of this engine
    wake: Callable[[], None]  # makes the loop take a turn soon; thread-safe


def open_peers(
    options: PeerOptions | None, mover: TierMover | None, core: Scheduler, fingerprint: str, block_size: int
) -> EnginePeers | None:
    """None where nobody is a peer, or there is no host tier for blocks to be in. Raises OSError, ValueError."""
    if options is None or mover is None:
        return None
    block_bytes = mover.host.block_bytes
    calls = LoopCalls(options.wake)
    store = TierBlockStore(core, mover.host, mover.disk, calls)
    server = BlockServer(options.endpoint, options.tls, store, fingerprint, block_bytes, options.incarnation)
    mover.pulls = PeerPulls(TcpTransport(options.tls, fingerprint, block_bytes), mover.host, options.wake)
    return EnginePeers(core, mover.pulls, calls, fingerprint, block_size, server)

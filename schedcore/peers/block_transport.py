"""The seam between an engine and its peers' blocks: tcp_transport.py, and window_transport.py over NIXL.

Everything blocks, and belongs to a thread that no step waits for (peer_thread.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from schedcore.api.types import PeerSource
from schedcore.tiers.block_digest import Key
from schedcore.tiers.session_files import SessionName

BLOCK_TRANSPORTS = TCP, NIXL = "tcp", "nixl"


class PeerBlocks(Protocol):
    """What one peer has. Every call may raise OSError; then the peer is gone, and this is to be closed."""

    def session_tokens(self, name: SessionName) -> bytes | None:
        """int32, little-endian; None: the peer does not know the session."""

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]: ...
    def held(self, keys: Sequence[Key]) -> list[bool]:
        """Which of the blocks the peer has now."""

    def pull(self, keys: Sequence[Key], places: Sequence[memoryview]) -> Iterator[bool]:
        """Fills places[i] with the block of keys[i]; True once it is there and undamaged. To be taken to its end."""

    def interrupt(self) -> None:
        """From another thread: what is under way raises OSError."""

    def close(self) -> None: ...


class BlockTransport(Protocol):
    def connect(self, source: PeerSource) -> PeerBlocks:
        """Raises OSError, PeerRefusedError, ValueError."""

"""How much offline work a server is given at a time: as much as runs without waiting.

A server that somebody else runs cannot be told to compute offline work only where nobody waits for it. What can be done
is to give it no more than leaves its queue empty and its cache with room. The window grows by a quarter as long as that
holds and it is used up, and halves when it does not; while an online request waits for its first token nothing is sent.
"""

from __future__ import annotations

from gateway.stock.gauges import Gauges

FIRST, MOST = 4, 1024
UNSEEN = 4  # where a server does not say its gauges
MAX_CACHE_USAGE = 0.9


class OfflineWindow:
    """Of one server. Pure."""

    def __init__(self) -> None:
        self._size = FIRST

    @property
    def size(self) -> int:
        """Offline requests that may be there."""
        return self._size

    def observe(self, gauges: Gauges | None, num_offline: int) -> None:
        """Once per look at the server. num_offline: of ours, that are there now."""
        if gauges is None:
            self._size = UNSEEN
        elif gauges.num_waiting > 0 or gauges.cache_usage > MAX_CACHE_USAGE:
            self._size = max(1, min(self._size, num_offline) // 2)
        elif num_offline >= self._size:
            self._size = min(MOST, self._size + max(1, self._size // 4))

    def has_room(self, num_offline: int, num_online_pending: int) -> bool:
        """num_online_pending: online requests of ours there, without a token yet."""
        return num_offline < self._size and num_online_pending == 0

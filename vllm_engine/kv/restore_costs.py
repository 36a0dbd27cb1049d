"""Whether cached blocks of a slower tier are brought back, or their tokens computed again: whichever is faster."""

from __future__ import annotations

from dataclasses import dataclass

from schedcore._core import algorithms
from schedcore.tiers import disk_tier


@dataclass(slots=True)
class RestoreCosts:
    """By predicted times, as in our own worker (cpp/core/transfers/restores.h)."""

    block_bytes: int
    latency: algorithms.LatencyModel | None = None  # None: nothing is known, what is there is taken
    host_bytes_per_second: float = 0.0  # 0: unknown
    disk_bytes_per_second: float = disk_tier.BYTES_PER_SECOND

    def is_faster(self, num_tokens: int, num_before: int, num_after: int, num_from_disk: int, block_size: int) -> bool:
        """Of a request of num_tokens with num_before of them cached: num_after, of which some come from the disk."""
        if self.latency is None or self.host_bytes_per_second <= 0:
            return True
        num_blocks = (num_after - num_before) // block_size
        copying = num_blocks * self.block_bytes / self.host_bytes_per_second
        reading = num_from_disk * self.block_bytes / self.disk_bytes_per_second
        return copying + reading < self._seconds(num_before, num_tokens) - self._seconds(num_after, num_tokens)

    def _seconds(self, num_computed: int, num_tokens: int) -> float:
        assert self.latency is not None
        batch = algorithms.LatencyBatch(max_context=num_tokens + 1)
        batch.add_chunk(num_computed, max(1, num_tokens - num_computed))
        return self.latency.predict(batch.features)

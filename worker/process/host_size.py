"""How much of the host's memory the host tier takes if nobody says.

Then it keeps sessions only: an advisory finds there what the device has dropped, and requests without a session cost
nothing. On CPU the memory is mapped, and becomes resident only as blocks are saved.
"""

from __future__ import annotations

from schedcore.api.config import EngineConfig
from worker.runner.memory import available_bytes

HOST_SHARE = 1 / 8  # of what is free at the start
MAX_HOST_BYTES = 4 << 30
CPU_SHARE_OF_CACHE = 1 / 4  # at most: there the cache could as well be larger


def host_cache_bytes(config: EngineConfig, pool_bytes: int, *, is_cuda: bool) -> int:
    """0: no host tier. pool_bytes: of the device's cache."""
    if config.host_cache_bytes is not None:
        return config.host_cache_bytes
    if not config.enable_prefix_caching and not config.partial_caching:
        return 0  # nothing could come back
    free = min(int(HOST_SHARE * available_bytes()), MAX_HOST_BYTES)
    return free if is_cuda else min(free, int(CPU_SHARE_OF_CACHE * pool_bytes))

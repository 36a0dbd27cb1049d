"""When a request of vLLM's gives its blocks back: at its end, or put out for want of memory, which no hook tells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

METHODS = ("free", "pop_blocks_for_free")  # of vLLM's KVCacheManager: at once, or when the steps under way have ended


def tell_before_release(cache_manager: Any, tell: Callable[[Any], None]) -> None:
    """tell: called with the request while it still has its blocks."""
    for name in METHODS:
        setattr(cache_manager, name, _telling(getattr(cache_manager, name), tell))


def _telling(method: Callable[[Any], Any], tell: Callable[[Any], None]) -> Callable[[Any], Any]:
    def telling(request: Any) -> Any:
        tell(request)
        return method(request)

    return telling

"""The C library's allocator, for tensors on CPU that are made and dropped in every step."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h of glibc
_KEPT_BYTES = (1 << 30, 32 << 20)  # the first that this glibc accepts; older ones take no more than the second


def keep_freed_memory() -> bool:
    """Freed memory stays with the process. False where the C library cannot be told so.

    By default large tensors are mapped anew and given back each time, and every page of them is a fault in every step:
    about a thousand in a prompt of 512 tokens on the demo model, 5 % of its time.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    is_set = any(mallopt(_M_MMAP_THRESHOLD, size) for size in _KEPT_BYTES)
    return bool(mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)) and is_set

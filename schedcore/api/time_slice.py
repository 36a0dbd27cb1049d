"""Asks the operating system to let this thread run soon after it wakes, at the price of running briefly.

Linux 6.12 and later (EEVDF): among threads that compete for a core, one with a shorter slice may interrupt one with a
longer slice as soon as it wakes; otherwise it waits until the other's slice is over, milliseconds. Its share of the
processor stays the same. Who passes tokens on sleeps most of the time and needs microseconds when it wakes.
"""

from __future__ import annotations

import ctypes
import os
import platform

_SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of sched_setattr(2), which libc does not wrap everywhere
_RESET_ON_FORK = 0x01  # a flag of its own here: children and their threads get the usual slice
_SHORTEST_NS = 100_000  # the kernel takes no less


class _Attributes(ctypes.Structure):
    """struct sched_attr, its first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime_ns", ctypes.c_uint64),  # for ordinary threads, the slice
        ("deadline_ns", ctypes.c_uint64),
        ("period_ns", ctypes.c_uint64),
    )


def shorten_time_slice() -> bool:
    """Of the calling thread. False where that is not possible or not allowed; nothing depends on it but latency."""
    number = _SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    attributes = _Attributes(
        size=ctypes.sizeof(_Attributes),
        policy=os.SCHED_OTHER,
        flags=_RESET_ON_FORK,
        nice=os.getpriority(os.PRIO_PROCESS, 0),
        runtime_ns=_SHORTEST_NS,
    )
    return bool(ctypes.CDLL(None).syscall(number, 0, ctypes.byref(attributes), 0) == 0)

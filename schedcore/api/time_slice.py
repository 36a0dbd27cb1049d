"""Who runs soon after it wakes, who gives up its core often, and who rests while others compute.

`shorten_time_slice`, for Linux 6.12 and later (EEVDF): among threads that compete for a core, one with a shorter slice
may interrupt one with a longer slice as soon as it wakes; otherwise it waits until the other's slice is over,
milliseconds. Its share of the processor stays the same. Who passes tokens on sleeps most of the time and needs
microseconds when it wakes.

Shorter than the usual one, but no shorter than what is done between two waits: the clock's tick takes the core from
whoever has used up the shortest slice of all that wait there, and gives it back at the next tick, 4 ms later. So
nobody who may wait on the same core should have a shorter one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import platform
import signal
from collections.abc import Iterator

from schedcore import _core

_SETATTR = {"x86_64": 314, "aarch64": 274}  # the number of sched_setattr(2), which libc does not wrap everywhere
_RESET_ON_FORK = 0x01  # a flag of its own here: children and their threads get the usual slice
_SHORT_SLICE_NS = 1_000_000  # the usual one is some three milliseconds
_TURN_SECONDS = 0.00025  # of computing, before others have theirs


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
        runtime_ns=_SHORT_SLICE_NS,
    )
    return bool(_libc().syscall(number, 0, ctypes.byref(attributes), 0) == 0)


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


@contextlib.contextmanager
def in_short_turns() -> Iterator[None]:
    """What computes inside gives up its core, where somebody waits for it, every quarter of a millisecond.

    Left alone, Linux would do so when its clock ticks, also in the system's idle class: one token in a hundred would
    come milliseconds late. A library's loop cannot be interrupted from Python, so the handler of a timer's signal is
    the system call itself. It ends what waits, too: inside, do not. Main thread only, SIGALRM.
    """
    library = _libc()
    library.signal(signal.SIGALRM, ctypes.cast(library.sched_yield, ctypes.c_void_p))
    signal.setitimer(signal.ITIMER_REAL, _TURN_SECONDS, _TURN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


@contextlib.contextmanager
def giving_way() -> Iterator[None]:
    """What computes inside rests for most of the time as long as others want its core (cpp/core/system/giving_way.h).

    Also within a library's loop. It ends what waits, too: inside, do not. A process's only computing thread, SIGALRM.
    """
    _core.begin_giving_way()
    try:
        yield
    finally:
        _core.end_giving_way()

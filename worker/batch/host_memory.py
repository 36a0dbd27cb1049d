"""Memory of this machine: for tensors that are made and dropped in every step, and for those that stay."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

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


_HUGE_PAGE = 2 << 20
_PIECE_BYTES = 64 << 20  # of address space; pages that nothing is written to are never there
_ALIGNMENT = 64  # a cache line


class HugePageMemory:
    """Memory for tensors that stay, one behind the other, in pages of 2 MiB where the system has such.

    Reading a gigabyte in pages of 4 KiB misses the processor's page table cache a quarter of a million times: 12 to
    25 % of the time of a matrix product. What a tensor took is free again when no tensor of its piece is left.
    """

    def __init__(self) -> None:
        self._piece: mmap.mmap | None = None
        self._used = 0

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A contiguous tensor with undefined content, aligned to 64 bytes."""
        num_elements = math.prod(shape)
        if num_elements == 0:
            return torch.empty(shape, dtype=dtype)
        num_bytes = num_elements * dtype.itemsize
        if self._piece is None or self._used + num_bytes > len(self._piece):
            self._piece = map_huge_pages(max(_PIECE_BYTES, -(-num_bytes // _HUGE_PAGE) * _HUGE_PAGE))
            self._used = 0
        tensor = torch.frombuffer(self._piece, dtype=dtype, count=num_elements, offset=self._used)
        self._used += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        return tensor.view(*shape)


def map_huge_pages(num_bytes: int) -> mmap.mmap:
    """Zeros, in pages of 2 MiB where the system has such; not resident until written to."""
    piece = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError, AttributeError):  # a kernel or a system without huge pages: then small ones
        piece.madvise(mmap.MADV_HUGEPAGE)
    return piece


_MADV_POPULATE_WRITE = 23  # Linux 5.14
_BUSY_SHARE = 0.1  # of a core, that the process's other threads use
_WINDOW_SECONDS = 0.1
_LONGEST_REST_SECONDS = 1.0


class IdleTime:
    """Of this process but for the thread that asks."""

    def __init__(self) -> None:
        self._mark()

    def wait(self) -> None:
        """Returns at once if the others have hardly run since the last call, else when they no longer do, or after a
        second: whoever asks gets on a little in any case."""
        until = time.monotonic() + _LONGEST_REST_SECONDS
        while self._is_busy() and time.monotonic() < until:
            self._mark()
            time.sleep(_WINDOW_SECONDS)
        self._mark()

    def _is_busy(self) -> bool:
        return self._others_seconds() - self._used > _BUSY_SHARE * (time.monotonic() - self._since)

    def _mark(self) -> None:
        self._since, self._used = time.monotonic(), self._others_seconds()

    @staticmethod
    def _others_seconds() -> float:
        return time.process_time() - time.thread_time()


def make_resident(*tensors: Tensor, at_once_seconds: float = 0.0) -> threading.Thread:
    """Has the system back all memory of these, from their starts on: for at_once_seconds before it returns, then in a
    thread that lets all others go first.

    The first write to a page waits for the system to find and clear memory; in a virtual machine whose host does so
    on demand, 2.4 ms per MiB were measured, a fifth of a decode step of many requests; 0.07 where the host has it.
    Content stays as it is. It ends at once where the system cannot do this.

    No priority is low enough beside steps: the system clears a huge page, 4 ms, before anybody else has the core, and
    a kernel's other thread waits (docs/log/2026-11-23-long-gaps.md). So it goes on while the process is idle.
    """
    pieces = _huge_pages(tensors)
    end = time.monotonic() + at_once_seconds
    while time.monotonic() < end and _populate(next(pieces, None)):
        pass

    def populate() -> None:
        with suppress(OSError, AttributeError):  # of this thread, on Linux
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        idle = IdleTime()
        while _populate(next(pieces, None)):
            idle.wait()

    thread = threading.Thread(target=populate, name="populate", daemon=True)
    thread.start()
    return thread


def _huge_pages(tensors: Sequence[Tensor]) -> Iterator[tuple[int, int]]:
    """Addresses and numbers of bytes, one behind the other."""
    for tensor in tensors:
        begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for address in range(begin // mmap.PAGESIZE * mmap.PAGESIZE, end, _HUGE_PAGE):
            yield address, min(_HUGE_PAGE, end - address)


def _populate(piece: tuple[int, int] | None) -> bool:
    """False if there is no piece, or the system cannot do this."""
    if piece is None:
        return False
    address, num_bytes = piece
    madvise = ctypes.CDLL(None).madvise  # releases the interpreter lock
    return bool(madvise(ctypes.c_void_p(address), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE) == 0)

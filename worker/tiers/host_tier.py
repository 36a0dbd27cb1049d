"""The host tier's memory: one slot per block, laid out as the units of a block are named in a plan."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from worker.batch.host_memory import map_huge_pages
from worker.batch.paged_pool import PagedPool

MEASURED_BYTES = 32 << 20  # that measuring the speed of copies moves, at most


class HostTier:
    """Slot s holds the units of one block: data[s, i] is the plan's i-th unit of it."""

    def __init__(self, pool: PagedPool, units_per_block: int, num_slots: int) -> None:
        shape = (num_slots, units_per_block, *pool.data.shape[1:])
        self.units_per_block = units_per_block
        self.data = _allocate(shape, pool.data)

    @property
    def num_slots(self) -> int:
        return self.data.shape[0]

    @property
    def block_bytes(self) -> int:
        return self.data[0].numel() * self.data.element_size()

    def slot_bytes(self, slot: int) -> memoryview:
        """The memory of a slot, writable, byte by byte."""
        return memoryview(self.data[slot].view(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]


def num_slots(num_bytes: int, pool: PagedPool, units_per_block: int) -> int:
    """Blocks that fit into so many bytes."""
    return num_bytes // (units_per_block * unit_bytes(pool))


def unit_bytes(pool: PagedPool) -> int:
    return pool.data[0].numel() * pool.data.element_size()


def measure_bytes_per_second(pool: PagedPool, host: HostTier) -> float:
    """From the host to the device, where nothing is in use yet. What is copied is zeros, as the pool is."""
    num_blocks = min(host.num_slots, pool.data.shape[0] // host.units_per_block, MEASURED_BYTES // host.block_bytes + 1)
    host.data[:num_blocks].zero_()  # or all of it would be read from the system's one page of zeros, a fifth faster
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for i in range(num_blocks):
            pool.data[i * host.units_per_block : (i + 1) * host.units_per_block].copy_(host.data[i])
        if pool.data.is_cuda:
            torch.cuda.synchronize(pool.data.device)
        best = min(best, time.perf_counter() - start)
    return num_blocks * host.block_bytes / best


def _allocate(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Pinned for CUDA; else mapped, and resident as it is written, or by make_resident()."""
    if like.is_cuda:
        return torch.zeros(shape, dtype=like.dtype, pin_memory=True)
    num_bytes = torch.Size(shape).numel() * like.element_size()
    return torch.frombuffer(map_huge_pages(num_bytes), dtype=like.dtype).view(shape)

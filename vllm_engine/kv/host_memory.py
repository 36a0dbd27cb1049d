"""The host tier's memory: one slot per block, and the copies between it and the device.

On CPU a copy is done when it returns. On CUDA what is saved is gathered on the device in the order of its stream and
leaves it on a stream of its own; what is loaded lands beside, and the device's stream waits for it. Whoever reads or
writes a slot from elsewhere waits for the fence of the copies that were begun before.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from vllm_engine.kv.device_blocks import DeviceBlocks

MEASURED_BYTES = 32 << 20  # that measuring the speed of copies moves, at most

Pairs = Sequence[tuple[int, int]]
Fence = Callable[[], None]  # returns when the copies that came before it are done


class HostMemory:
    def __init__(self, device: DeviceBlocks, num_slots: int) -> None:
        self._device = device
        self.num_slots = num_slots
        self.data = _allocate(num_slots, device.block_bytes, is_pinned=device.device.type == "cuda")
        self._copies = CudaCopies(device, self.data) if device.device.type == "cuda" else CpuCopies(device, self.data)

    def save(self, pairs: Pairs) -> None:
        """pairs: block, slot. Later writes to the device come behind it."""
        if pairs:
            self._copies.save([block for block, _ in pairs], [slot for _, slot in pairs])

    def load(self, pairs: Pairs) -> None:
        """pairs: slot, block. Later reads of the device see it."""
        if pairs:
            self._copies.load([slot for slot, _ in pairs], [block for _, block in pairs])

    def fence(self) -> Fence:
        return self._copies.fence()

    def slot_bytes(self, slot: int) -> memoryview:
        """Writable."""
        return memoryview(self.data[slot].numpy())  # type: ignore[arg-type]

    def measure_bytes_per_second(self) -> float:
        """From the host to the device, where nothing is in use yet: zeros are copied to where zeros are."""
        most = max(1, MEASURED_BYTES // self._device.block_bytes)
        pairs = [(i, i) for i in range(min(self.num_slots, self._device.num_blocks, most))]
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            self.load(pairs)
            self.fence()()
            best = min(best, time.perf_counter() - start)
        return len(pairs) * self._device.block_bytes / max(best, 1e-9)


class CpuCopies:
    def __init__(self, device: DeviceBlocks, host: Tensor) -> None:
        self._device, self._host = device, host

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        gathered = torch.empty((len(blocks), self._device.block_bytes), dtype=torch.uint8)
        self._device.read(torch.tensor(blocks), gathered)
        self._host[torch.tensor(slots)] = gathered

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        self._device.write(torch.tensor(blocks), self._host[torch.tensor(slots)])

    def fence(self) -> Fence:
        return _nothing


class CudaCopies:
    """Not run with vLLM yet: the copies alone are tried by tests/vllm_engine/kv/test_host_memory.py where CUDA is."""

    def __init__(self, device: DeviceBlocks, host: Tensor) -> None:
        self._device, self._host = device, host
        self._stream = torch.cuda.Stream(device.device)  # type: ignore[no-untyped-call]

    def save(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        gathered = self._staging(len(blocks))
        self._device.read(self._device.indices(blocks), gathered)
        self._stream.wait_stream(torch.cuda.current_stream(self._device.device))
        with torch.cuda.stream(self._stream):
            for i, slot in enumerate(slots):
                self._host[slot].copy_(gathered[i], non_blocking=True)
        gathered.record_stream(self._stream)

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        landed = self._staging(len(slots))
        current = torch.cuda.current_stream(self._device.device)
        self._stream.wait_stream(current)  # the memory of `landed` may have been in use there
        with torch.cuda.stream(self._stream):  # behind the saves, which may be of the same slots
            for i, slot in enumerate(slots):
                landed[i].copy_(self._host[slot], non_blocking=True)
        current.wait_stream(self._stream)
        self._device.write(self._device.indices(blocks), landed)

    def fence(self) -> Fence:
        event = self._stream.record_event()
        return event.synchronize  # type: ignore[no-any-return]

    def _staging(self, num_blocks: int) -> Tensor:
        return torch.empty((num_blocks, self._device.block_bytes), dtype=torch.uint8, device=self._device.device)


def _nothing() -> None:
    pass


def _allocate(num_slots: int, block_bytes: int, is_pinned: bool) -> Tensor:
    """Pinned for CUDA; else mapped, and resident as it is written."""
    if is_pinned:
        return torch.zeros((num_slots, block_bytes), dtype=torch.uint8, pin_memory=True)
    return torch.frombuffer(mmap.mmap(-1, num_slots * block_bytes), dtype=torch.uint8).view(num_slots, block_bytes)

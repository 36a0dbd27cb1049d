"""A step's arrays on their way to the device: packed into one buffer, sent in one copy, seen there as typed tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ALIGNMENT = 16  # bytes: what every dtype and every vector load needs

Array = npt.NDArray[Any]

_TORCH_DTYPES: dict[np.dtype[Any], torch.dtype] = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.uint64): torch.int64,  # the same bits
    np.dtype(np.float32): torch.float32,
}


class Parcel:
    """Arrays, and after Staging.send() the tensors that they are on the device."""

    __slots__ = ("_tensors", "arrays", "dtype")

    def __init__(self, *arrays: Array, dtype: npt.DTypeLike | None = None) -> None:
        """Arrays have one dimension and are read when they are sent. dtype: of the tensors; None: each as its array."""
        self.arrays = arrays
        self.dtype = None if dtype is None else np.dtype(dtype)
        self._tensors: list[Tensor] | None = None

    @property
    def is_sent(self) -> bool:
        return self._tensors is not None

    @property
    def tensors(self) -> Sequence[Tensor]:
        """Flat, each 16-byte aligned, valid until the next send()."""
        if self._tensors is None:
            raise RuntimeError("the parcel has not been sent")
        return self._tensors

    def arrive(self, tensors: list[Tensor]) -> None:
        self._tensors = tensors

    def send_alone(self, device: torch.device) -> None:
        """Where nothing else goes: a copy for each array."""
        self.arrive([to_device(array, device) for array in self.arrays])


class Staging:
    """Two pinned buffers on the host take turns: packing waits for the copy before the last, which is long done.

    The device has one buffer. Copies and kernels are in the order of one stream, so a copy comes after everything that
    reads what it overwrites. On CPU there is one buffer altogether, tensors are views of it, and nothing is copied.
    """

    def __init__(self, device: torch.device, num_bytes: int = 1 << 16, *, can_grow: bool = True) -> None:
        """can_grow: to hold what is sent; else tensors lie at addresses that never change."""
        self._device, self._can_grow = device, can_grow
        self._turn = 0  # of the host's buffers
        self._allocate(num_bytes)

    def fits(self, *parcels: Parcel) -> bool:
        """Whether they can be sent without growing."""
        return _layout(parcels)[1] <= self._num_bytes

    def send(self, *parcels: Parcel) -> None:
        """Raises ValueError for more than a buffer that cannot grow has."""
        places, num_bytes = _layout(parcels)
        if num_bytes > self._num_bytes:
            self._grow(num_bytes)
        buffer = self._buffers[self._turn]
        self._turn = (self._turn + 1) % len(self._buffers)
        buffer.wait()
        for dtype, begin, end, array in places:
            buffer.arrays[dtype][begin:end] = array
        if self._device.type != "cpu":
            self._target.copy_from(buffer, num_bytes)
        typed = self._target.tensors
        tensors = iter([typed[dtype][begin:end] for dtype, begin, end, _ in places])
        for parcel in parcels:
            parcel.arrive([next(tensors) for _ in parcel.arrays])

    def _grow(self, num_bytes: int) -> None:
        if not self._can_grow:
            raise ValueError(f"{num_bytes} bytes do not fit a buffer of {self._num_bytes}")
        self._allocate(max(num_bytes, 2 * self._num_bytes))

    def _allocate(self, num_bytes: int) -> None:
        self._num_bytes = -(-num_bytes // ALIGNMENT) * ALIGNMENT
        is_cpu, is_cuda = self._device.type == "cpu", self._device.type == "cuda"
        self._buffers = [_Buffer(self._num_bytes, is_pinned=is_cuda) for _ in range(1 if is_cpu else 2)]
        self._target = self._buffers[0] if is_cpu else _Buffer(self._num_bytes, self._device)
        self._turn = 0


class _Buffer:
    __slots__ = ("_sent", "arrays", "bytes", "tensors")

    def __init__(self, num_bytes: int, device: torch.device | None = None, *, is_pinned: bool = False) -> None:
        """device: None: the host. num_bytes: a multiple of ALIGNMENT."""
        self.bytes = torch.zeros(num_bytes, dtype=torch.uint8, device=device, pin_memory=is_pinned)
        self.tensors = {dtype: self.bytes.view(as_torch) for dtype, as_torch in _TORCH_DTYPES.items()}
        self.arrays: dict[np.dtype[Any], Array] = {}  # the same memory, on the host
        if device is None:
            self.arrays = {dtype: self.bytes.numpy().view(dtype) for dtype in _TORCH_DTYPES}
        self._sent: torch.cuda.Event | None = None

    def wait(self) -> None:
        """Until no copy reads it."""
        if self._sent is not None:
            self._sent.synchronize()

    def copy_from(self, source: _Buffer, num_bytes: int) -> None:
        """Queued; source.wait() waits for it."""
        self.bytes[:num_bytes].copy_(source.bytes[:num_bytes], non_blocking=True)
        if self.bytes.is_cuda:
            source._sent = source._sent or torch.cuda.Event()  # type: ignore[no-untyped-call]
            source._sent.record(torch.cuda.current_stream(self.bytes.device))


_Place = tuple[np.dtype[Any], int, int, Array]  # as what, where to, counted in that, and from where


def _layout(parcels: Sequence[Parcel]) -> tuple[list[_Place], int]:
    """In order, each aligned; and the bytes that all take."""
    places: list[_Place] = []
    num_bytes = 0
    for parcel in parcels:
        for array in parcel.arrays:
            dtype, begin = parcel.dtype or array.dtype, -(-num_bytes // ALIGNMENT) * ALIGNMENT
            num_bytes = begin + len(array) * dtype.itemsize
            places.append((dtype, begin // dtype.itemsize, num_bytes // dtype.itemsize, array))
    return places, num_bytes


def to_device(array: Array, device: torch.device) -> Tensor:
    """For arrays that not every step has: a copy of their own, without waiting for the device."""
    tensor = torch.from_numpy(array if array.flags.writeable else array.copy())  # torch warns of what it cannot write
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Tensors of one device on the host, when its stream has come so far: the only way in which a step waits for it."""
    if not tensors[0].is_cuda:
        return tensors
    on_host = tuple(torch.empty(t.shape, dtype=t.dtype, pin_memory=True) for t in tensors)
    for to, tensor in zip(on_host, tensors, strict=True):
        to.copy_(tensor, non_blocking=True)
    torch.cuda.current_stream(tensors[0].device).record_event().synchronize()
    return on_host


def to_lists(*tensors: Tensor) -> list[list[Any]]:
    """Their elements, with one wait for all."""
    return [tensor.tolist() for tensor in to_host(*tensors)]

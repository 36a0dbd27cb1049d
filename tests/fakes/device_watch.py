"""Watches what torch is asked for: copies into tensors, and whatever would make the host wait for a CUDA device.

A function mode sees calls from Python, on tensors of any device; so it works where there is no GPU.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_WAITING = {
    Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.__index__, Tensor.nonzero, Tensor.masked_select, Tensor.unique, torch.nonzero, torch.masked_select,
    torch.unique, torch.tensor, torch.as_tensor, torch.argwhere, torch.equal, Tensor.equal, Tensor.repeat_interleave,
}  # fmt: skip
_DOOR = "worker/batch/staging.py"  # where waiting and copying is meant


class DeviceWatch(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.sources: list[Tensor] = []  # of copies into a buffer on the device
        self.waits: list[str] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is Tensor.copy_ and args[0].device != args[1].device:
            assert kwargs == {"non_blocking": True}
            self.sources.append(args[1])
        if _waits(func, args, kwargs) and not _is_through_the_door():
            self.waits.append(func.__name__)
        return func(*args, **kwargs)


def _waits(func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    if func in _WAITING:
        return True
    if func is Tensor.to:
        return any(isinstance(a, torch.device | str) for a in (*args, *kwargs.values()))
    if func in (Tensor.__getitem__, Tensor.__setitem__):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        return any(isinstance(part, list) or (isinstance(part, Tensor) and part.dtype is torch.bool) for part in index)
    return False


def _is_through_the_door() -> bool:
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code.co_filename.endswith(_DOOR):
            return True
    return False


@contextmanager
def torch_raises_on_waits() -> Iterator[None]:
    """On CUDA. Waiting for an event is no wait to torch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that not every wait is found
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")

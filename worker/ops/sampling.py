"""From logits to tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.batch.staging import Parcel, to_host
from worker.ops import native, reference
from worker.ops.draw import DrawParameters
from worker.ops.tensor_spec import match

Int32Array = npt.NDArray[np.int32]
UInt64Array = npt.NDArray[np.uint64]
Words = npt.NDArray[np.uint32]  # a bit per token, the lowest first
_NO_MASKS: UInt64Array = np.zeros(0, np.uint64)


def argmax(logits: Tensor) -> Int32Array:
    """logits float32 [n, V] -> the first of the largest of each row, [n]; NO_TOKEN where that is not finite."""
    if not takes_addresses(logits):
        return reference.argmax(logits)  # on CUDA too: torch's is as fast as memory
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    tokens = np.empty(num_rows, dtype=np.int32)
    native.kernels.argmax(logits.data_ptr(), vocab_size, tokens)
    return tokens


def allow_tokens(logits: Tensor, rows: Int32Array, masks: Sequence[Words]) -> None:
    """In place: logits float32 [n, V] become minus infinity where a bit is not set; NaN of allowed tokens stays.

    rows: distinct; masks[i], of rows[i], has at least V bits.
    """
    if not takes_addresses(logits):
        return reference.allow_tokens(logits, rows, masks)
    addresses = np.array([mask.ctypes.data for mask in masks], np.uint64)
    return allow_tokens_at(logits, rows, addresses)


def allow_tokens_at(logits: Tensor, rows: Int32Array, addresses: UInt64Array) -> None:
    """Likewise, for masks that are known by their addresses. REQUIRES: takes_addresses(logits)."""
    _, vocab_size = match("logits[n,V|V,1]", logits)
    if len(rows) != len(addresses):
        raise ValueError(f"{len(rows)} rows need as many masks, got {len(addresses)}")
    native.kernels.allow_tokens(logits.data_ptr(), vocab_size, rows, addresses)


def allowed_argmax_at(logits: Tensor, rows: Int32Array, addresses: UInt64Array, tokens: Int32Array) -> None:
    """tokens [n], the likeliest of rows `rows` of logits, become what argmax() would give behind allow_tokens_at().

    Logits stay as they are. REQUIRES: takes_addresses(logits).
    """
    _, vocab_size = match("logits[n,V|V,1]", logits)
    if not len(rows) == len(addresses) == len(tokens):
        raise ValueError(f"{len(tokens)} tokens need as many rows and masks, got {len(rows)} and {len(addresses)}")
    native.kernels.allowed_argmax(logits.data_ptr(), vocab_size, rows, addresses, tokens)


def draws_on_device(x: Tensor) -> bool:
    """Whether draw_tokens() of logits that are where x is reads its parameters on the device."""
    return native.has_kernel(x) and native.stream(x) != native.CPU


def draw_tokens(
    logits: Tensor,
    parameters: DrawParameters,
    drawing: Parcel | None = None,
    addresses: UInt64Array = _NO_MASKS,
) -> Int32Array:
    """logits float32 [n, V] -> tokens [n]. A row's token does not depend on the other rows.

    NO_TOKEN for rows that hold NaN, or whose largest logit is not finite.
    drawing: parameters.parcel(), where it has been sent to the device. addresses: [n], of masks that say which tokens
    count, 0 for rows without; as allow_tokens_at() would, but the logits stay. REQUIRES then: takes_addresses(logits).
    """
    p = parameters
    if not native.has_kernel(logits) or logits.dtype is not torch.float32:
        return reference.draw_tokens(logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)
    num_rows, vocab_size = match("logits[n,V|V,1]", logits)
    if any(len(values) != num_rows for values in (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)):
        raise ValueError(f"{num_rows} rows of logits need as many of each parameter")
    if len(addresses) not in (0, num_rows):
        raise ValueError(f"{num_rows} rows of logits need as many masks, got {len(addresses)}")
    if native.stream(logits) != native.CPU:
        return _draw_on_device(logits, drawing or p.parcel())
    tokens = np.empty(num_rows, dtype=np.int32)
    native.kernels.draw_tokens(
        logits.data_ptr(), vocab_size, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index, tokens,
        addresses,
    )  # fmt: skip
    return tokens


def _draw_on_device(logits: Tensor, drawing: Parcel) -> Int32Array:
    """Only the tokens come back."""
    if not drawing.is_sent:
        drawing.send_alone(logits.device)
    temperature, top_k, top_p, min_p, seed, index = (tensor.data_ptr() for tensor in drawing.tensors)
    tokens = torch.empty(len(logits), dtype=torch.int32, device=logits.device)
    native.kernels.draw_tokens_on_device(
        tokens.data_ptr(), logits.data_ptr(), len(logits), logits.shape[1], temperature, top_k, top_p, min_p, seed,
        index, native.stream(logits),
    )  # fmt: skip
    ids: Int32Array = to_host(tokens)[0].numpy()
    return ids


def takes_addresses(logits: Tensor) -> bool:
    """Whether allow_tokens_at() is for these logits, and the CPU's kernels for the tokens of a row."""
    return takes_addresses_on(logits.device) and logits.dtype is torch.float32


def takes_addresses_on(device: torch.device) -> bool:
    """Likewise for float32 logits there."""
    return native.HAS_KERNELS and device.type == "cpu"

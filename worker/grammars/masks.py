"""Bits of allowed tokens -> logits that are minus infinity for all others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from worker.batch.staging import to_device
from worker.grammars.matcher import Matcher, Words

_BITS = np.arange(32, dtype=np.int32)
# What eight tokens may reach at most, by the byte of their bits: as high as they are, or minus infinity.
_HIGHEST = np.where(np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little"), np.inf, -np.inf)
_HIGHEST = _HIGHEST.astype(np.float32)  # [256, 8]


def follow(logits: Tensor, matchers: Mapping[int, Matcher]) -> None:
    """In place. matchers: by row, waited for. Rows whose matcher cannot go on become NaN: no token is chosen there."""
    broken = [row for row, matcher in matchers.items() if matcher.problem is not None]
    going_on = {row: matcher.mask for row, matcher in matchers.items() if matcher.problem is None}
    allow_only(logits, list(going_on), list(going_on.values()))
    for row in broken:
        logits[row] = float("nan")


def allow_only(logits: Tensor, rows: Sequence[int], masks: Sequence[Words]) -> None:
    """In place; logits float32 [n, vocab_size]. masks[i], of at least vocab_size bits, is of row rows[i]."""
    if not rows:
        return
    if logits.is_cuda:
        _on_device(logits, rows, masks)
        return
    values = logits.numpy()
    num_bytes = -(-logits.shape[1] // 8)
    for row, mask in zip(rows, masks, strict=True):
        highest = _HIGHEST.take(mask.view(np.uint8)[:num_bytes], axis=0).reshape(-1)[: logits.shape[1]]
        np.minimum(values[row], highest, out=values[row])  # without a branch per token; NaN stays NaN


def _on_device(logits: Tensor, rows: Sequence[int], masks: Sequence[Words]) -> None:
    """An eighth of a byte per token crosses, not a byte."""
    device = logits.device
    words = to_device(np.stack(masks).view(np.int32), device)
    bits = (words[:, :, None] >> to_device(_BITS, device)) & 1
    forbidden = bits.flatten(1)[:, : logits.shape[1]] == 0
    at = to_device(np.array(rows, np.int64), device)
    logits[at] = logits[at].masked_fill(forbidden, float("-inf"))

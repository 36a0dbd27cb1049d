"""Bits of allowed tokens -> logits that are minus infinity for all others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from worker import ops
from worker.grammars.matcher import Matcher, Words


def follow(logits: Tensor, rows: npt.NDArray[np.int64], matchers: Sequence[Matcher]) -> None:
    """In place; matchers: of these rows, waited for. One that cannot go on allows nothing."""
    at = rows.astype(np.int32)
    if ops.takes_addresses(logits):
        ops.allow_tokens_at(logits, at, addresses(matchers))
    else:
        ops.allow_tokens(logits, at, [matcher.mask for matcher in matchers])


def addresses(matchers: Sequence[Matcher]) -> npt.NDArray[np.uint64]:
    """Of their masks."""
    return np.array([matcher.address for matcher in matchers], np.uint64)


def allow_only(logits: Tensor, rows: Sequence[int], masks: Sequence[Words]) -> None:
    """In place; logits float32 [n, vocab_size]. masks[i], of at least vocab_size bits, is of row rows[i]."""
    if rows:
        ops.allow_tokens(logits, np.array(rows, np.int32), masks)

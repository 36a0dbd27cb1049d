"""The part of a BatchPlan that the sampler reads, made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan


@dataclass
class SamplingPlan:
    request_ids: npt.NDArray[np.uint64]
    rows: npt.NDArray[np.int32]
    seq_lens: npt.NDArray[np.int32]
    sample_seqs: npt.NDArray[np.int32]


def sampling_plan(request_ids: Sequence[int], seq_lens: Sequence[int], rows: Sequence[int] | None = None) -> BatchPlan:
    """Every sequence samples. rows: by default 0, 1, 2, ..."""
    count = len(request_ids)
    plan = SamplingPlan(
        np.array(request_ids, dtype=np.uint64),
        np.array(range(count) if rows is None else rows, dtype=np.int32),
        np.array(seq_lens, dtype=np.int32),
        np.arange(count, dtype=np.int32),
    )
    return cast(BatchPlan, plan)

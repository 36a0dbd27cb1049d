"""Hidden states of a prompt made one vector (embeddings), collected chunk by chunk.

The mean needs every position, and the first token's state needs the first: a prefix from the cache would have none, so
that the engine submits such requests under a salt of their own. The last position is computed in any case.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import NO_TOKEN, BatchPlan
from schedcore.api.types import EngineRequest, Pooling, PoolingKind

MIN_LENGTH = 1e-12  # of a vector that is divided by its length

Indices = npt.NDArray[np.int32]


class Span(NamedTuple):
    """Tokens [start, start + size) of the batch: of one request, and wanted for its vector."""

    request_id: int
    start: int
    size: int


class _Pending:
    __slots__ = ("num_prompt_tokens", "num_seen", "pooling", "total")

    def __init__(self, request: EngineRequest, pooling: Pooling) -> None:
        self.pooling = pooling
        self.num_prompt_tokens = len(request.prompt_token_ids)
        self.num_seen = 0  # positions; a preempted request's come again
        self.total: Tensor | None = None  # float64 [hidden_size], of what was wanted so far

    def wanted(self, first: int, end: int) -> tuple[int, int]:
        """Of the positions [first, end) that a step computes; empty: none."""
        end = min(end, self.num_prompt_tokens)
        if self.pooling.kind is PoolingKind.CLS:
            end = min(end, 1)
        return max(
            first, self.num_seen, self.num_prompt_tokens - 1 if self.pooling.kind is PoolingKind.LAST else 0
        ), end

    def vector(self, total: Tensor) -> npt.NDArray[np.float64]:
        found: npt.NDArray[np.float64] = total.cpu().numpy()
        if self.pooling.kind is PoolingKind.MEAN:
            found = found / self.num_prompt_tokens
        found = found[: self.pooling.num_dimensions]
        return found / max(float(np.linalg.norm(found)), MIN_LENGTH) if self.pooling.is_normalized else found


class Pools:
    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def add(self, request: EngineRequest) -> None:
        if request.pooling is not None:
            self._pending[request.request_id] = _Pending(request, request.pooling)

    def remove(self, request_id: int) -> None:
        self._pending.pop(request_id, None)

    @property
    def has_requests(self) -> bool:
        """Whether any of those that were added is of interest here."""
        return bool(self._pending)

    def spans(self, plan: BatchPlan) -> list[Span]:
        """What this plan computes of what is wanted, in the order of the batch."""
        if not self._pending:
            return []
        found = []
        starts, seq_lens = plan.query_start.tolist(), plan.seq_lens.tolist()
        for seq, request_id in enumerate(plan.request_ids.tolist()):
            pending = self._pending.get(request_id)
            if pending is not None:
                first_computed = seq_lens[seq] - (starts[seq + 1] - starts[seq])
                first, end = pending.wanted(first_computed, seq_lens[seq])
                if first < end:
                    found.append(Span(request_id, starts[seq] + first - first_computed, end - first))
                    pending.num_seen = end
        return found

    def collect(self, span: Span, hidden: Tensor) -> None:
        """hidden [span.size, hidden_size] of the span's tokens."""
        pending = self._pending[span.request_id]
        total = hidden.sum(0, dtype=torch.float64)
        pending.total = total if pending.total is None else pending.total + total

    def samples_nothing_else(self, plan: BatchPlan) -> bool:
        """Whether nobody wants the tokens that this plan would sample."""
        return all(request_id in self._pending for request_id in plan.request_ids[plan.sample_seqs].tolist())

    def take_complete(self, plan: BatchPlan, token_ids: Indices) -> dict[int, bytes] | None:
        """The vectors, as float32, of the requests that sample in this plan: their prompt is done.

        token_ids: what the plan sampled; NO_TOKEN is put where a vector is not finite.
        """
        if not self._pending:
            return None
        complete: dict[int, bytes] = {}
        for i, request_id in enumerate(plan.request_ids[plan.sample_seqs].tolist()):
            pending = self._pending.pop(request_id, None)
            if pending is None or pending.total is None:
                continue
            vector = pending.vector(pending.total)
            if not np.isfinite(vector).all():
                token_ids[i] = NO_TOKEN
            complete[request_id] = vector.astype("<f4").tobytes()
        return complete or None


def span_indices(spans: list[Span]) -> Indices:
    """Of the batch's tokens, those in the spans; ascending."""
    return np.concatenate([np.arange(s.start, s.start + s.size, dtype=np.int32) for s in spans] or [np.empty(0, "i4")])

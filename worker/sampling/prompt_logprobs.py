"""Log-probabilities of the prompt's own tokens (`echo` with `logprobs`), collected chunk by chunk.

Position p of the prompt predicts token p + 1, so every prompt position but the last needs logits. A prefix from the
cache would have none: the engine submits such requests under a salt of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from schedcore._core import NO_TOKEN, BatchPlan
from schedcore.api.types import EngineRequest, TokenLogprobs
from worker.batch.staging import to_device
from worker.sampling.logprobs import token_logprobs

MAX_ROWS = 256  # logits computed at once: 256 x 150,000 tokens are 150 MB


class Chunk(NamedTuple):
    """Prompt positions [first, first + size) of one request, at tokens [start, start + size) of the batch."""

    request_id: int
    start: int
    first: int
    size: int


class _Pending:
    __slots__ = ("entries", "is_finite", "num_alternatives", "prompt")

    def __init__(self, request: EngineRequest) -> None:
        self.prompt = np.array(request.prompt_token_ids, np.int64)
        self.num_alternatives = request.sampling.num_prompt_logprobs or 0
        self.entries: list[TokenLogprobs | None] = [None] * len(request.prompt_token_ids)
        self.is_finite = True


class PromptLogprobs:
    def __init__(self) -> None:
        self._pending: dict[int, _Pending] = {}

    def add(self, request: EngineRequest) -> None:
        if request.sampling.num_prompt_logprobs is not None:
            self._pending[request.request_id] = _Pending(request)

    def remove(self, request_id: int) -> None:
        self._pending.pop(request_id, None)

    @property
    def has_requests(self) -> bool:
        """Whether any of those that were added is of interest here."""
        return bool(self._pending)

    def chunks(self, plan: BatchPlan) -> list[Chunk]:
        """The parts of this plan whose logits are wanted, in the order of the batch."""
        if not self._pending:
            return []
        found = []
        starts, seq_lens = plan.query_start.tolist(), plan.seq_lens.tolist()
        for seq, request_id in enumerate(plan.request_ids.tolist()):
            pending = self._pending.get(request_id)
            if pending is not None:
                first = seq_lens[seq] - (starts[seq + 1] - starts[seq])
                size = min(seq_lens[seq], len(pending.prompt) - 1) - first
                if size > 0:
                    found.append(Chunk(request_id, starts[seq], first, size))
        return found

    def collect(self, chunk: Chunk, hidden: Tensor, compute_logits: Callable[[Tensor], Tensor]) -> None:
        """hidden [chunk.size, hidden_size] of the chunk's tokens."""
        pending = self._pending[chunk.request_id]
        for begin in range(0, chunk.size, MAX_ROWS):
            end = min(begin + MAX_ROWS, chunk.size)
            following = slice(chunk.first + begin + 1, chunk.first + end + 1)
            logprobs = compute_logits(hidden[begin:end]).log_softmax(-1)
            tokens = to_device(pending.prompt[following], logprobs.device)
            entries = token_logprobs(logprobs, tokens, [pending.num_alternatives] * (end - begin))
            pending.entries[following] = entries
            pending.is_finite &= not any(math.isnan(entry.logprob) for entry in entries)

    def fail_broken(self, plan: BatchPlan, token_ids: npt.NDArray[np.int32]) -> None:
        """NO_TOKEN to requests whose prompt had logits that are not finite. token_ids: what the plan sampled."""
        broken = [request_id for request_id, pending in self._pending.items() if not pending.is_finite]
        if broken:
            token_ids[np.isin(plan.request_ids[plan.sample_seqs], broken)] = NO_TOKEN

    def take_complete(self, plan: BatchPlan) -> dict[int, list[TokenLogprobs | None]] | None:
        """Of the requests that sample in this plan: their prompt is done. Each is given out once."""
        if not self._pending:
            return None
        sampling = plan.request_ids[plan.sample_seqs].tolist()
        return {i: self._pending.pop(i).entries for i in sampling if i in self._pending} or None


def token_indices(chunks: list[Chunk]) -> npt.NDArray[np.int32]:
    """Of the batch's tokens, those in the chunks; ascending."""
    return np.concatenate([np.arange(c.start, c.start + c.size, dtype=np.int32) for c in chunks] or [np.empty(0, "i4")])

"""Logits to token ids, for a whole batch at once.

Per request: bias, forbidden stop tokens and penalties, then temperature, then min-p, top-k, top-p. Log-probabilities
are the model's own, before any of these. A greedy request gets the same tokens alone and in any company.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from torch import Tensor

from schedcore._core import BatchPlan
from schedcore.types import EngineRequest, TokenLogprobs
from worker import ops
from worker.sampling.adjust import AdjustedRow, adjust
from worker.sampling.logprobs import token_logprobs
from worker.sampling.request_state import Needs, RequestState, is_plain
from worker.sampling.row_table import RowTable
from worker.staging import Parcel, to_device
from worker.step_arguments import DrawParameters

TokenIds = npt.NDArray[np.int32]


class Sampler:
    def __init__(self, max_num_seqs: int, vocab_size: int, seed: int = 0) -> None:
        """seed: for requests that bring none."""
        self._vocab_size, self._seed = vocab_size, seed
        self._states: dict[int, RequestState] = {}  # of requests that are not plainly greedy
        self._table = RowTable(max_num_seqs)

    def add(self, request: EngineRequest) -> None:
        if not is_plain(request):
            self._states[request.request_id] = RequestState(request, self._vocab_size, self._seed)

    def remove(self, request_id: int) -> None:
        self._states.pop(request_id, None)
        self._table.forget(request_id)

    def is_greedy(self, plan: BatchPlan) -> bool:
        """Whether argmax is all that this plan's tokens need."""
        return not self._states or not self._needs(plan).any()

    def drawing(self, plan: BatchPlan) -> Parcel | None:
        """What sample() takes, for a device that draws tokens; None where no token of the plan is random."""
        if not self._states or not (self._needs(plan) & Needs.RANDOM).any():
            return None
        rows = plan.rows[plan.sample_seqs]
        return self._parameters(rows, self._num_output_tokens(plan, rows)).parcel()

    def sample(
        self, logits: Tensor, plan: BatchPlan, drawing: Parcel | None = None
    ) -> tuple[TokenIds, dict[int, TokenLogprobs] | None]:
        """logits float32 [len(plan.sample_seqs), vocab_size], overwritten.

        drawing: where it has been sent to the device. Token ids, and log-probabilities by index into them, for requests
        that asked.
        """
        if not self._states:
            return ops.argmax(logits), None
        seqs = plan.sample_seqs
        request_ids, rows = plan.request_ids[seqs], plan.rows[seqs]
        needs = self._needs(plan)
        any_needs = int(np.bitwise_or.reduce(needs)) if len(needs) else 0
        if not any_needs:
            return ops.argmax(logits), None

        num_output_tokens = self._num_output_tokens(plan, rows)
        raw = None
        if any_needs & Needs.LOGPROBS:
            asked = np.flatnonzero(needs & Needs.LOGPROBS)
            raw = logits[to_device(asked, logits.device)].log_softmax(-1)
        if any_needs & Needs.ADJUSTMENTS:
            adjust(logits, self._adjusted_rows(needs, request_ids, num_output_tokens))
        if any_needs & Needs.RANDOM:
            token_ids = ops.draw_tokens(logits, self._parameters(rows, num_output_tokens), drawing)
        else:
            token_ids = ops.argmax(logits)
        if any_needs & Needs.PENALTIES:
            self._remember(needs, request_ids, token_ids)
        if raw is None:
            return token_ids, None
        return token_ids, self._logprobs(raw, token_ids, asked, request_ids)

    def _needs(self, plan: BatchPlan) -> npt.NDArray[np.uint8]:
        """Of each token that is sampled, as Needs."""
        rows = plan.rows[plan.sample_seqs]
        self._table.sync(plan.request_ids[plan.sample_seqs], rows, self._states)
        return self._table.needs[rows]

    def _num_output_tokens(self, plan: BatchPlan, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Before this step, by the tokens that are sampled. rows: theirs."""
        return plan.seq_lens[plan.sample_seqs] - self._table.num_prompt_tokens[rows]

    def _adjusted_rows(
        self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64], num_output: npt.NDArray[np.int64]
    ) -> list[AdjustedRow]:
        which = np.flatnonzero(needs & Needs.ADJUSTMENTS)
        states = [self._states[request_id] for request_id in request_ids[which].tolist()]
        return [AdjustedRow(*row) for row in zip(which.tolist(), states, num_output[which].tolist(), strict=True)]

    def _parameters(self, rows: npt.NDArray[np.int32], num_output_tokens: npt.NDArray[np.int64]) -> DrawParameters:
        table = self._table
        return DrawParameters(
            table.temperature[rows],
            table.top_k[rows],
            table.top_p[rows],
            table.min_p[rows],
            table.seed[rows],
            num_output_tokens,
        )

    def _remember(self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64], token_ids: TokenIds) -> None:
        which = np.flatnonzero(needs & Needs.PENALTIES)
        for request_id, token in zip(request_ids[which].tolist(), token_ids[which].tolist(), strict=True):
            history = self._states[request_id].history
            if history is not None:
                history.add(token)

    def _logprobs(
        self, raw: Tensor, token_ids: TokenIds, asked: npt.NDArray[np.int64], request_ids: npt.NDArray[np.uint64]
    ) -> dict[int, TokenLogprobs]:
        states = [self._states[request_id] for request_id in request_ids[asked].tolist()]
        numbers = [state.params.num_logprobs or 0 for state in states]
        chosen = to_device(token_ids[asked].astype(np.int64), raw.device)
        entries = token_logprobs(raw, chosen, numbers)
        return dict(zip(asked.tolist(), entries, strict=True))

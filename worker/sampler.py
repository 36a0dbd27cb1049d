"""Logits to token ids, for a whole batch at once.

Per request: bias, forbidden stop tokens and penalties, then temperature, then min-p, top-k, top-p. Log-probabilities
are the model's own, before any of these. A greedy request gets the same tokens alone and in any company.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from schedcore.types import EngineRequest, TokenLogprobs
from worker.sampling.adjust import AdjustedRow, adjust
from worker.sampling.draw import draw, keep_likeliest
from worker.sampling.logprobs import token_logprobs
from worker.sampling.noise import uniforms
from worker.sampling.request_state import Needs, RequestState, is_plain
from worker.sampling.row_table import RowTable

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

    def sample(self, logits: Tensor, plan: BatchPlan) -> tuple[TokenIds, dict[int, TokenLogprobs] | None]:
        """logits float32 [len(plan.sample_seqs), vocab_size], overwritten.

        Token ids, and log-probabilities by index into them, for requests that asked.
        """
        if not self._states:
            return _to_host(logits.argmax(-1)), None
        seqs = plan.sample_seqs
        request_ids, rows = plan.request_ids[seqs], plan.rows[seqs]
        self._table.sync(request_ids, rows, self._states)
        needs = self._table.needs[rows]
        any_needs = int(np.bitwise_or.reduce(needs)) if len(needs) else 0
        if not any_needs:
            return _to_host(logits.argmax(-1)), None

        num_output_tokens = plan.seq_lens[seqs] - self._table.num_prompt_tokens[rows]
        raw = None
        if any_needs & Needs.LOGPROBS:
            asked = np.flatnonzero(needs & Needs.LOGPROBS)
            raw = logits[torch.from_numpy(asked).to(logits.device)].log_softmax(-1)
        if any_needs & Needs.ADJUSTMENTS:
            adjust(logits, self._adjusted_rows(needs, request_ids, num_output_tokens))
        chosen = self._choose(logits, needs, rows, num_output_tokens)
        token_ids = _to_host(chosen)
        if any_needs & Needs.PENALTIES:
            self._remember(needs, request_ids, token_ids)
        if raw is None:
            return token_ids, None
        return token_ids, self._logprobs(raw, chosen, asked, request_ids)

    def _adjusted_rows(
        self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64], num_output: npt.NDArray[np.int64]
    ) -> list[AdjustedRow]:
        which = np.flatnonzero(needs & Needs.ADJUSTMENTS)
        states = [self._states[request_id] for request_id in request_ids[which].tolist()]
        return [AdjustedRow(*row) for row in zip(which.tolist(), states, num_output[which].tolist(), strict=True)]

    def _choose(
        self,
        logits: Tensor,
        needs: npt.NDArray[np.uint8],
        rows: npt.NDArray[np.int32],
        num_output_tokens: npt.NDArray[np.int64],
    ) -> Tensor:
        """int64 [n]: argmax, replaced where the request asked for chance."""
        choice = needs & Needs.CHOICE
        free, filtered = np.flatnonzero(choice == Needs.RANDOM), np.flatnonzero(choice == Needs.CHOICE)
        for which, is_filtered in ((free, False), (filtered, True)):
            if len(which) == len(needs):
                return self._draw(logits, rows, num_output_tokens, is_filtered=is_filtered)
        chosen = logits.argmax(-1)
        for which, is_filtered in ((free, False), (filtered, True)):
            if len(which):
                at = torch.from_numpy(which).to(logits.device)
                chosen[at] = self._draw(logits[at], rows[which], num_output_tokens[which], is_filtered=is_filtered)
        return chosen

    def _draw(
        self, logits: Tensor, rows: npt.NDArray[np.int32], num_output: npt.NDArray[np.int64], *, is_filtered: bool
    ) -> Tensor:
        table, device = self._table, logits.device
        temperature = torch.from_numpy(table.temperature[rows]).to(device)
        uniform = torch.from_numpy(uniforms(table.seed[rows], num_output)).to(device)
        probs = logits.div_(temperature[:, None]).softmax(-1)
        if is_filtered:
            filters = (torch.from_numpy(values[rows]).to(device) for values in (table.top_k, table.top_p, table.min_p))
            probs = keep_likeliest(probs, *filters)
        return draw(probs, uniform)

    def _remember(self, needs: npt.NDArray[np.uint8], request_ids: npt.NDArray[np.uint64], token_ids: TokenIds) -> None:
        which = np.flatnonzero(needs & Needs.PENALTIES)
        for request_id, token in zip(request_ids[which].tolist(), token_ids[which].tolist(), strict=True):
            history = self._states[request_id].history
            if history is not None:
                history.add(token)

    def _logprobs(
        self, raw: Tensor, chosen: Tensor, asked: npt.NDArray[np.int64], request_ids: npt.NDArray[np.uint64]
    ) -> dict[int, TokenLogprobs]:
        states = [self._states[request_id] for request_id in request_ids[asked].tolist()]
        numbers = [state.params.num_logprobs or 0 for state in states]
        entries = token_logprobs(raw, chosen[torch.from_numpy(asked).to(chosen.device)], numbers)
        return dict(zip(asked.tolist(), entries, strict=True))


def _to_host(token_ids: Tensor) -> TokenIds:
    ids: TokenIds = token_ids.to(torch.int32).cpu().numpy()
    return ids

"""Samples that a grammar forces: they need neither logits nor a choice (worker/grammars/forced_spans.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from schedcore._core import NO_TOKEN, BatchPlan
from schedcore.api.types import TokenLogprobs
from worker.grammars.forced_spans import Span

TokenIds = npt.NDArray[np.int32]


class _Without:
    """A plan with other sample_seqs."""

    def __init__(self, plan: BatchPlan, sample_seqs: npt.NDArray[np.int32]) -> None:
        self._plan, self.sample_seqs = plan, sample_seqs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._plan, name)


class ForcedRows:
    """Of one plan; a row is an entry of plan.sample_seqs."""

    def __init__(self, plan: BatchPlan, spans: Sequence[Span]) -> None:
        """spans: some have forced tokens. Each one's last row is sampled, behind all that is forced."""
        self._spans = [span for span in spans if span.num_forced]
        is_chosen = np.ones(len(plan.sample_seqs), np.bool_)
        for span in self._spans:
            is_chosen[span.row : span.row + span.num_forced] = False
        self._chosen = np.flatnonzero(is_chosen)
        self._inputs = plan.token_ids[plan.query_start[plan.sample_seqs]]
        self.rest = cast(BatchPlan, _Without(plan, plan.sample_seqs[self._chosen]))  # what is left to choose

    def complete(
        self, token_ids: TokenIds, logprobs: dict[int, TokenLogprobs] | None
    ) -> tuple[TokenIds, dict[int, TokenLogprobs] | None]:
        """What was sampled of `rest`, as that of the plan: a forced token is what the next row computes.

        Where numbers that are not finite leave no token behind a span, the span has none either: its vectors are not
        to be shared.
        """
        tokens = np.roll(self._inputs, -1)
        tokens[self._chosen] = token_ids
        for span in self._spans:
            last = span.row + span.num_forced
            matcher = span.matcher
            if tokens[last] == NO_TOKEN and matcher.problem is None and matcher.mask.any():
                tokens[span.row : last] = NO_TOKEN
        if logprobs is not None:
            logprobs = {int(self._chosen[i]): of_token for i, of_token in logprobs.items()}
        return tokens, logprobs

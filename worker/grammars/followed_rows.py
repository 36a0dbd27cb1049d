"""Rows of a step's logits that follow a grammar, and masks for those that need one.

The likeliest token of all, where the grammar allows it, is the likeliest of those that it allows. So a greedy row needs
its mask only where the grammar refuses what the model wants: a trained model follows its form by itself, and within
strings so do models that know nothing. Then moving the matcher on, which is to be done anyway, is nearly all that a
grammar takes. A request that was refused lately has its mask found beside the forward pass; one that is refused without
has it found here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from torch import Tensor

from worker import ops
from worker.grammars.masks import addresses, follow
from worker.grammars.matcher import Matcher

TokenIds = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int64]


class FollowedRows:
    """Of one step: rows that are not greedy are masked, in one of two ways, tokens are chosen, then correct()."""

    def __init__(self, rows: Rows, matchers: Sequence[Matcher], is_greedy: npt.NDArray[np.bool_]) -> None:
        """matchers: of these rows of the logits, waited for. is_greedy: rows that a mask need not go before."""
        self._first: list[Matcher] = []
        self._first_rows: Rows = rows[:0]
        self._greedy, self._greedy_rows = matchers, rows
        if not is_greedy.all():
            self._first_rows, self._greedy_rows = rows[~is_greedy], rows[is_greedy]
            self._first = [matcher for matcher, greedy in zip(matchers, is_greedy.tolist(), strict=True) if not greedy]
            self._greedy = [matcher for matcher, greedy in zip(matchers, is_greedy.tolist(), strict=True) if greedy]

        for matcher in self._first:
            if not matcher.has_mask:
                matcher.find_mask()

    def mask(self, logits: Tensor) -> None:
        """In place: rows that are not greedy."""
        if self._first:
            follow(logits, self._first_rows, self._first)

    def mask_addresses(self, num_rows: int) -> npt.NDArray[np.uint64]:
        """The same as addresses of masks for ops.draw_tokens(), which leaves the logits."""
        found = np.zeros(num_rows if self._first else 0, np.uint64)
        if self._first:
            found[self._first_rows] = addresses(self._first)
        return found

    def correct(self, logits: Tensor, token_ids: TokenIds) -> tuple[list[Matcher], TokenIds]:
        """In place: greedy rows' tokens, until now the likeliest of all, become allowed ones; NO_TOKEN if none is.

        Returns which matchers are still to be moved on, and their tokens.
        """
        at = self._greedy_rows
        tokens = token_ids[at]
        for matcher, token in zip(self._greedy, tokens.tolist(), strict=True):
            if not matcher.has_mask and not matcher.take(token):
                matcher.find_mask()
        behind = [matcher for matcher in self._greedy if matcher.has_mask]
        if len(behind) < len(self._greedy):
            has_mask = np.array([matcher.has_mask for matcher in self._greedy], np.bool_)
            at, tokens = at[has_mask], tokens[has_mask]
        if behind:
            wanted = tokens.tolist()
            ops.allowed_argmax_at(logits, at.astype(np.int32), addresses(behind), tokens)
            token_ids[at] = tokens
            for matcher, token, allowed in zip(behind, wanted, tokens.tolist(), strict=True):
                matcher.num_unaided = matcher.num_unaided + 1 if token == allowed else 0
        if not self._first:
            return behind, tokens
        return [*self._first, *behind], np.concatenate((token_ids[self._first_rows], tokens))

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
    """Of steps of the same requests: rows that are not greedy are masked, in one of two ways, tokens are chosen, then
    correct(). Matchers are waited for before each.
    """

    def __init__(self, rows: Rows, matchers: Sequence[Matcher], is_greedy: npt.NDArray[np.bool_]) -> None:
        """matchers: of these rows of the logits. is_greedy: rows that a mask need not go before."""
        self.matchers = matchers
        self._first_rows, self._rows = rows[~is_greedy], rows[is_greedy]
        self._first = [matcher for matcher, greedy in zip(matchers, is_greedy.tolist(), strict=True) if not greedy]
        self._greedy = [matcher for matcher, greedy in zip(matchers, is_greedy.tolist(), strict=True) if greedy]
        self._first_masks, self._masks = addresses(self._first), addresses(self._greedy)
        self._at = self._rows.astype(np.int32)

    @property
    def are_greedy(self) -> bool:
        """There is nothing to be done before correct()."""
        return not self._first

    def mask(self, logits: Tensor) -> None:
        """In place: rows that are not greedy."""
        if self._first:
            self._find_first()
            follow(logits, self._first_rows, self._first)

    def mask_addresses(self, num_rows: int) -> npt.NDArray[np.uint64]:
        """The same as addresses of masks for ops.draw_tokens(), which leaves the logits."""
        self._find_first()
        found = np.zeros(num_rows if self._first else 0, np.uint64)
        if self._first:
            found[self._first_rows] = self._first_masks
        return found

    def correct(self, logits: Tensor, token_ids: TokenIds) -> tuple[list[Matcher], TokenIds]:
        """In place: greedy rows' tokens, until now the likeliest of all, become allowed ones; NO_TOKEN if none is.

        Returns which matchers are still to be moved on, and their tokens.
        """
        wanted = (token_ids if len(self._rows) == len(token_ids) else token_ids[self._rows]).tolist()
        behind = self._take(wanted)
        matchers = [self._greedy[i] for i in behind]
        tokens = token_ids[:0]
        if behind:
            few = slice(None) if len(behind) == len(wanted) else np.array(behind)
            rows = self._rows[few]
            tokens = token_ids[rows]
            ops.allowed_argmax_at(logits, self._at[few], self._masks[few], tokens)
            token_ids[rows] = tokens
            for i, matcher, token in zip(behind, matchers, tokens.tolist(), strict=True):
                matcher.num_unaided = matcher.num_unaided + 1 if token == wanted[i] else 0
        if not self._first:
            return matchers, tokens
        return [*self._first, *matchers], np.concatenate((token_ids[self._first_rows], tokens))

    def _take(self, tokens: Sequence[int]) -> list[int]:
        """Greedy matchers move on by a token each, if they may. Returns which did not, and have their masks."""
        behind = []
        for i, matcher in enumerate(self._greedy):
            if not matcher.has_mask:
                if matcher.take(tokens[i]):
                    continue
                matcher.find_mask()
            behind.append(i)
        return behind

    def _find_first(self) -> None:
        for matcher in self._first:
            if not matcher.has_mask:
                matcher.find_mask()

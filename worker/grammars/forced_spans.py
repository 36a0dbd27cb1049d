"""Tokens that nothing but can come next in an answer's form, named to the scheduler before it plans (jump-forward).

A token is sampled, its matcher moves on at once and says what has to follow; the scheduler may have that computed in
one step, and its plan says how much of it. The matcher then moves on by so much, and the mask behind it is found beside
the forward pass. So a matcher never knows of a token that does not come, and nothing is taken back.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from schedcore._core import NO_TOKEN, BatchPlan
from worker.grammars.matcher import Matcher

TokenIds = npt.NDArray[np.int32]

# To ask a matcher takes 1 to 4 us of the engine's thread. Where the scheduler wants nothing of it, as where steps
# compute rather than read, it is asked in one step of 17.
_MANY_IN_VAIN = 4  # steps in a row
_NUM_UNASKED = 16


class Span:
    """Of one request: its row of plan.sample_seqs, and how many forced tokens are computed behind it."""

    __slots__ = ("matcher", "num_forced", "row")

    def __init__(self, row: int, num_forced: int, matcher: Matcher) -> None:
        self.row, self.num_forced, self.matcher = row, num_forced, matcher


class ForcedSpans:
    """Called on the engine's thread. Matchers that wait here belong to no other."""

    def __init__(self) -> None:
        self._waiting: dict[int, Matcher] = {}  # by request id: `forced`, and no plan has sampled behind it since
        self._unnamed: list[int] = []  # of these, whom the scheduler does not know
        self._num_in_vain = 0
        self._num_unasked = 0

    def ask(
        self, matchers: Sequence[Matcher], tokens: TokenIds, followed: Sequence[Matcher]
    ) -> tuple[list[Matcher], TokenIds, list[Matcher]]:
        """Behind a step. matchers, tokens: to be moved on, NO_TOKEN where there is none; followed: all of the step's.

        Returns what is still to be moved on, with its tokens, and whose mask may be found as they stand.
        """
        if self._num_unasked > 0:
            self._num_unasked -= 1
            return list(matchers), tokens, []
        names_forced = np.array([matcher.names_forced for matcher in matchers], np.bool_)
        moved = []
        for matcher, token in zip(matchers, tokens.tolist(), strict=True):
            if matcher.names_forced and token != NO_TOKEN:
                matcher.advance(token)
                moved.append(matcher)
        for matcher in followed:
            if matcher.names_forced and not matcher.has_mask and matcher.find_forced():
                self._waiting[matcher.request_id] = matcher
                self._unnamed.append(matcher.request_id)
        rest = [matcher for matcher in matchers if not matcher.names_forced]
        return rest, tokens[~names_forced], [matcher for matcher in moved if not matcher.forced]

    def take_unnamed(self) -> list[tuple[int, list[int]]]:
        """Requests, and what has to come next in each, since the last call."""
        unnamed, self._unnamed = self._unnamed, []
        return [(i, self._waiting[i].forced) for i in unnamed if i in self._waiting]

    def follow(self, plan: BatchPlan) -> list[Span]:
        """Matchers of the plan's samples move on by what it computes of their spans. Those that waited, with how much.

        What has not been waited for, or is not sampled behind in this plan, goes on waiting.
        """
        if not self._waiting:
            return []
        ids: list[int] = plan.request_ids[plan.sample_seqs].tolist()
        spans = []
        row = 0
        while row < len(ids):
            end = row + 1
            while end < len(ids) and ids[end] == ids[row]:
                end += 1
            matcher = self._waiting.pop(ids[row], None)
            if matcher is not None:
                spans.append(Span(row, end - row - 1, matcher))
                matcher.follow_forced(end - row - 1)
            row = end
        self._count(spans, plan)
        return spans

    def remove(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

    def _count(self, spans: list[Span], plan: BatchPlan) -> None:
        if any(span.num_forced for span in spans):
            self._num_in_vain = 0
        elif spans and plan.num_tokens == plan.num_seqs:  # beside prompts little is guessed anyway
            self._num_in_vain += 1
            if self._num_in_vain >= _MANY_IN_VAIN:
                self._num_unasked = _NUM_UNASKED

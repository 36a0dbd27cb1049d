"""Tokens that nothing but can come next in an answer's form, named to the scheduler before it plans (jump-forward).

A token is sampled, its matcher moves on at once and says what has to follow; the scheduler may have that computed in
one step, and its plan says how much of it. The matcher then moves on by so much, and the mask behind it is found beside
the forward pass. So a matcher never knows of a token that does not come, and nothing is taken back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from schedcore._core import NO_TOKEN, BatchPlan
from worker.grammars.forced_worth import ForcedWorth
from worker.grammars.matcher import Matcher

TokenIds = npt.NDArray[np.int32]


class Span:
    """Of one request: its row of plan.sample_seqs, and how many forced tokens are computed behind it."""

    __slots__ = ("matcher", "num_forced", "row")

    def __init__(self, row: int, num_forced: int, matcher: Matcher) -> None:
        self.row, self.num_forced, self.matcher = row, num_forced, matcher


class ForcedSpans:
    """Called on the engine's thread, follow() before a step and ask() behind it. Matchers that wait here belong to no
    other.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._waiting: dict[int, Matcher] = {}  # by request id: `forced`, and no plan has sampled behind it since
        self._unnamed: list[int] = []  # of these, whom the scheduler does not know
        self._worth = ForcedWorth()
        self._share = 0.0  # of the rows of the step under way, forced
        self._begin = 0.0  # of that step, if any

    def ask(
        self, matchers: Sequence[Matcher], tokens: TokenIds, followed: Sequence[Matcher]
    ) -> tuple[list[Matcher], TokenIds, list[Matcher]]:
        """Behind a step. matchers, tokens: to be moved on, NO_TOKEN where there is none; followed: all of the step's.

        Returns what is still to be moved on, with its tokens, and whose mask may be found as they stand.
        """
        if self._share > 0:
            self._worth.on_saved(self._share * (self._clock() - self._begin))
            self._share = 0.0
        if not self._worth.wants():
            return list(matchers), tokens, []
        begin = self._clock()
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
        self._worth.on_asked(self._clock() - begin)
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
        num_forced = sum(span.num_forced for span in spans)
        if num_forced:
            self._share, self._begin = num_forced / len(ids), self._clock()
        return spans

    def remove(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

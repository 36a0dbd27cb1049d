"""Grammars of open requests: compiled, kept and followed on threads beside the engine's own.

A grammar is compiled before its request goes to the scheduler; a mask while the step before it is delivered and its own
is computed. Without a grammar there is no thread, no vocabulary and nothing in a step.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from schedcore._core import BatchPlan
from schedcore.api.types import EngineRequest, Grammar
from schedcore.grammar.problems import readable
from schedcore.grammar.source import limits, llguidance_source
from worker.grammars.follower import Follower
from worker.grammars.forced_spans import ForcedSpans, Span
from worker.grammars.matcher import Matcher
from worker.grammars.vocabulary import VocabularyError, has_vocabulary, load_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_COMPILED = 64  # grammars kept for the next request that brings one of them
WAIT_SECONDS = 0.005  # of an engine that has nothing else to do


class GrammarError(Exception):
    """This grammar cannot be followed; the message is for the client."""


class Grammars:
    """Called on the engine's thread only."""

    def __init__(self, folder: Path | None, vocab_size: int, *, names_forced: bool = False) -> None:
        """folder: of the checkpoint, for its vocabulary; None: every grammar is refused. names_forced: whether the
        scheduler is told of tokens that nothing but can come.
        """
        self._folder, self._vocab_size = folder, vocab_size
        self._vocabulary: LLTokenizer | None = None
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._compiling: dict[int, Future[Matcher]] = {}  # by request id, in the order of arrival
        self._matchers: dict[int, Matcher] = {}
        self._compiler: ThreadPoolExecutor | None = None
        self._follower: Follower | None = None
        self._spans = ForcedSpans() if names_forced else None

    @property
    def has_vocabulary(self) -> bool:
        return self._folder is not None and has_vocabulary(self._folder)

    @property
    def is_compiling(self) -> bool:
        return bool(self._compiling)

    def begin(self, request: EngineRequest) -> None:
        """REQUIRES: it has a grammar. take_compiled() will name it."""
        if self._compiler is None:
            self._compiler = ThreadPoolExecutor(1, thread_name_prefix="grammars")
            self._follower = Follower()
        self._compiling[request.request_id] = self._compiler.submit(self.compile, request)

    def take_compiled(self) -> list[tuple[int, str | None]]:
        """Requests whose grammar is ready, each with why it cannot be followed."""
        done = [request_id for request_id, future in self._compiling.items() if future.done()]
        found: list[tuple[int, str | None]] = []
        for request_id in done:
            try:
                self._matchers[request_id] = self._compiling.pop(request_id).result()
                found.append((request_id, None))
            except GrammarError as error:
                found.append((request_id, str(error)))
        return found

    def wait(self) -> bool:
        """For the next grammar, a little while. False if none is being compiled."""
        if not self._compiling:
            return False
        wait(self._compiling.values(), WAIT_SECONDS, "FIRST_COMPLETED")
        return True

    def matcher(self, request_id: int) -> Matcher:
        """REQUIRES: take_compiled() has named it."""
        return self._matchers[request_id]

    def remove(self, request_id: int) -> bool:
        """Idempotent. Whether its grammar was still being compiled."""
        self._matchers.pop(request_id, None)
        if self._spans is not None:
            self._spans.remove(request_id)
        future = self._compiling.pop(request_id, None)
        return future is not None and (future.cancel() or True)

    def problem(self, request_id: int) -> str | None:
        """Why an open request cannot follow its grammar any further."""
        matcher = self._matchers.get(request_id)
        return None if matcher is None else matcher.problem

    def wait_for_masks(self) -> None:
        """Until every matcher is at its next token, with its mask if it wants one."""
        if self._follower is not None:
            self._follower.wait()

    def advance(
        self, matchers: Sequence[Matcher], tokens: npt.NDArray[np.int32], followed: Sequence[Matcher] = ()
    ) -> None:
        """The tokens that were sampled, each for its matcher; the next masks that they want are found meanwhile.

        followed: all matchers of the step, with those that have moved on already.
        """
        if self._follower is None:
            return
        if self._spans is not None:
            matchers, tokens, moved = self._spans.ask(matchers, tokens, followed)
            self._begin_masks(moved)
        if matchers:
            self._follower.begin(matchers, tokens)

    @property
    def names_forced(self) -> bool:
        return self._spans is not None

    def take_forced(self) -> list[tuple[int, list[int]]]:
        """Requests, and what has to come next in each, since the last call."""
        return [] if self._spans is None else self._spans.take_unnamed()

    def follow_forced(self, plan: BatchPlan) -> list[Span]:
        """Forced tokens that the plan computes, for matchers of which the scheduler was told."""
        if self._spans is None:
            return []
        spans = self._spans.follow(plan)
        self._begin_masks([span.matcher for span in spans])
        return spans

    def _begin_masks(self, matchers: Sequence[Matcher]) -> None:
        wanting = [matcher for matcher in matchers if matcher.wants_mask and not matcher.has_mask]
        if self._follower is not None and wanting:
            self._follower.begin_masks(wanting)

    def close(self) -> None:
        if self._compiler is not None:
            self._compiler.shutdown(cancel_futures=True)
        if self._follower is not None:
            self._follower.close()

    def compile(self, request: EngineRequest) -> Matcher:
        """With the mask of its first token. On the compiling thread, as all below. Raises GrammarError."""
        assert request.grammar is not None
        if self._vocabulary is None:
            self._vocabulary = self._load()
        inner = self._compiled.get(request.grammar)
        if inner is None:
            inner = self._compiled[request.grammar] = _compile(self._vocabulary, request.grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(request.grammar)
        ends = self._vocabulary.eos_tokens
        num_words = (self._vocabulary.vocab_size + 31) // 32
        matcher = Matcher(inner.deep_copy(), ends, request.stop_token_ids, num_words)
        for token in request.prompt_token_ids[len(request.prompt_token_ids) - request.num_prior_tokens :]:
            if matcher.problem is None:
                matcher.advance(token)
        matcher.find_mask()
        return matcher

    def _load(self) -> LLTokenizer:
        if self._folder is None:
            raise GrammarError("this engine follows no grammars")
        try:
            return load_vocabulary(self._folder, self._vocab_size)
        except VocabularyError as error:
            raise GrammarError(f"this model follows no grammars: {error}") from None


def _compile(vocabulary: LLTokenizer, grammar: Grammar) -> LLMatcher:
    from llguidance import LLMatcher

    try:
        source = llguidance_source(grammar)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"the grammar is malformed: {error}") from None
    inner = LLMatcher(vocabulary, source, log_level=0, limits=limits())
    if inner.is_error():
        raise GrammarError(f"the grammar cannot be compiled: {readable(inner.get_error())}")
    return inner

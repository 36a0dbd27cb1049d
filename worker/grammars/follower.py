"""A thread that moves matchers on and finds what may come next, while the engine's own delivers and computes a step."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

import numpy as np
import numpy.typing as npt

from schedcore._core import NO_TOKEN
from worker.grammars.matcher import Matcher

_Sampled = tuple[Sequence[Matcher], npt.NDArray[np.int32] | None]


class Follower:
    """Called by one thread. Matchers that it has been given belong to its own until wait().

    Queues instead of futures: a step hands over and waits in 3 us, which is noticed in steps of 200.
    """

    def __init__(self) -> None:
        self._todo: SimpleQueue[_Sampled | None] = SimpleQueue()
        self._done: SimpleQueue[Exception | None] = SimpleQueue()
        self._num_open = 0
        self._thread = threading.Thread(target=self._run, name="masks", daemon=True)
        self._thread.start()

    def begin(self, matchers: Sequence[Matcher], tokens: npt.NDArray[np.int32]) -> None:
        """tokens[i] was sampled for matchers[i]; NO_TOKEN: none was."""
        self._num_open += 1
        self._todo.put((matchers, tokens))

    def begin_masks(self, matchers: Sequence[Matcher]) -> None:
        """They are at their next token already."""
        self._num_open += 1
        self._todo.put((matchers, None))

    def wait(self) -> None:
        """Until every matcher is at its next token."""
        while self._num_open:
            self._num_open -= 1
            error = self._done.get()
            if error is not None:
                raise error

    def close(self) -> None:
        self._todo.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (sampled := self._todo.get()) is not None:
            try:
                self._follow(*sampled)
            except Exception as error:  # ours: it ends the engine, loudly
                self._done.put(error)
            else:
                self._done.put(None)

    @staticmethod
    def _follow(matchers: Sequence[Matcher], tokens: npt.NDArray[np.int32] | None) -> None:
        if tokens is None:
            for matcher in matchers:
                matcher.find_mask()
            return
        for matcher, token in zip(matchers, tokens.tolist(), strict=True):
            if token != NO_TOKEN:
                matcher.advance(token)
                if matcher.wants_mask:
                    matcher.find_mask()

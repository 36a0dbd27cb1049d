"""A small model guesses what requests will say next, as many tokens as the core asks for.

It has a scheduler, a cache and a runner of its own (small_model.py). Whoever it is asked about is a request there for
as long as the question takes: its prompt is all that is known, and what of that was computed before is in the small
model's prefix cache, so that a guess costs the last block again and one token more at a time. So nothing of it has to
follow what the large model's cache goes through: eviction, tiers, other forms, moves to another engine.

It samples as the request does, with the request's own noise at the same places of the answer: where both models find
the same tokens likely, both draw the same one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore._core import AddStatus, Scheduler
from schedcore.api.types import EngineRequest
from worker.runner.executor import Executor

Int32Array = npt.NDArray[np.int32]
WARM_UP_SIZES = (1, 8, 32)  # requests at once
WARM_UP_PROMPT, WARM_UP_TOKENS = 32, 4
WARM_UP_ID = 1 << 62  # of requests that nobody has asked for


class ModelGuesser:
    """Implements Guesser. core: of the engine; own: the small model's, with the runner that its plans are for."""

    def __init__(
        self,
        core: Scheduler,
        own: Scheduler,
        runner: Executor,
        *,
        vocab_size: int,
        max_model_len: int,
        vocab_size_of_engine: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.seconds = 0.0
        self._core, self._own, self._runner, self._clock = core, own, runner, clock
        self._vocab_size, self._max_model_len = vocab_size, max_model_len
        self._most_tokens = vocab_size_of_engine
        self._requests: dict[int, EngineRequest] = {}
        self._known: set[int] = set()  # whose text the small model has read

    def add(self, request: EngineRequest) -> None:
        self._requests[request.request_id] = request

    def remove(self, request_id: int) -> None:
        self._requests.pop(request_id, None)
        self._known.discard(request_id)

    def guess(self) -> None:
        begin = self._clock()
        num_tokens, asked = self._core.ask_model(begin)
        if not asked:
            return
        are_known = all(request_id in self._known for request_id, _, _ in asked)
        guesses = self.answer(num_tokens, asked)
        for request_id, tokens in guesses.items():
            self._core.suggest(request_id, tokens)
        seconds = self._clock() - begin
        self.seconds += seconds
        if are_known:  # to read a text for the first time is no part of what guessing takes
            self._core.note_model(len(asked), num_tokens, seconds)

    def answer(self, num_tokens: int, asked: Sequence[tuple[int, Int32Array, int]]) -> Mapping[int, list[int]]:
        """Up to so many tokens of each (request id, its tokens so far, how many of them are output).

        It takes so many steps at most. Who has more to read than they get through is answered another time.
        """
        begun = [
            request_id
            for request_id, text, num_output in asked
            if self._begin(request_id, text, num_output, num_tokens)
        ]
        guesses: dict[int, list[int]] = defaultdict(list)
        for _ in range(num_tokens):
            plan = self._own.schedule(self._clock())
            if not plan:
                break
            result = self._runner.execute(plan)
            output = self._own.commit(result.sampled_token_ids, self._clock())
            for request_id, token in zip(output.request_ids.tolist(), output.token_ids.tolist(), strict=True):
                guesses[request_id].append(token)
        for request_id in begun:
            self._own.abort(request_id)
            self._runner.remove_request(request_id)
        self._known.update(guesses)
        return {request_id: self._usable(tokens) for request_id, tokens in guesses.items()}

    def measure(self) -> float:
        """Tells the core how long guesses take. Returns the seconds of one request's token."""
        for size in WARM_UP_SIZES:
            for first in (2 * size, 3 * size):  # the first time is to warm up
                asked = [(WARM_UP_ID + first + i, self._made_up(first + i), 0) for i in range(size)]
                self.answer(1, asked)
                begin = self._clock()
                self.answer(WARM_UP_TOKENS, asked)
                seconds = self._clock() - begin
            self._core.note_model(size, WARM_UP_TOKENS, seconds)
            if size == 1:
                of_one = seconds / WARM_UP_TOKENS
        self._known.clear()
        self._own.reset_prefix_cache()
        return of_one

    def _made_up(self, seed: int) -> Int32Array:
        return np.random.default_rng(seed).integers(0, self._vocab_size, WARM_UP_PROMPT).astype(np.int32)

    def _begin(self, request_id: int, text: Int32Array, num_output: int, num_tokens: int) -> bool:
        """False where it cannot go on: the text is too long for it, or has tokens that it does not know."""
        if len(text) + num_tokens > self._max_model_len or text.max() >= self._vocab_size:
            return False
        request = self._requests.get(request_id) or EngineRequest(request_id, [], num_tokens)
        status = self._own.add_request(
            request_id, text, max_tokens=num_tokens, cache_salt=request.cache_salt, tenant=request.tenant
        )
        if status != AddStatus.OK:
            return False
        sampling = msgspec.structs.replace(request.sampling, num_logprobs=None, num_prompt_logprobs=None)
        continued = msgspec.structs.replace(
            request, prompt_token_ids=text.tolist(), sampling=sampling, num_prior_tokens=num_output
        )
        self._runner.add_request(continued)
        return True

    def _usable(self, tokens: list[int]) -> list[int]:
        """Up to the first one that the engine's model does not have, or that there was none of."""
        for i, token in enumerate(tokens):
            if not 0 <= token < self._most_tokens:
                return tokens[:i]
        return tokens

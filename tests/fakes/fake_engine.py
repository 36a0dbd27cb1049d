"""An engine without a model: what it says is the prompt, or a script. For the gateway's tests."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Callable, Sequence

import msgspec

from fakes.byte_tokenizer import END, VOCAB_SIZE
from fakes.fake_sessions import FakeSessions
from gateway.engine.delta_stream import DeltaRouter, DeltaStream
from gateway.engine.engine_answers import EngineAnswers
from gateway.engine.engine_client import EngineDeadError
from schedcore.api.types import (
    Advisory,
    CacheReset,
    EngineError,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ErrorCode,
    FinishReason,
    RequestClass,
    SessionState,
    TokenDelta,
    TokenLogprobs,
)

IMAGE_TOKENS = 9  # beside the one in the prompt
Script = Callable[[EngineRequest], Sequence[int]]

INFO = EngineInfo(
    model="fake",
    dtype="float32",
    device="cpu",
    vocab_size=VOCAB_SIZE,
    max_model_len=4096,
    block_size=16,
    num_units=1000,
    units_per_block=2,
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    policy="fcfs",
    startup_seconds=0.0,
    has_grammars=True,
)


def echo(request: EngineRequest) -> Sequence[int]:
    """The prompt, then the end of sequence; a chat's last message without the tokens around it."""
    ids = [token_id for token_id in request.prompt_token_ids if token_id < END]
    return [*ids, END]


def saying(text: str) -> Script:
    return lambda request: [*text.encode(), END]


class FakeSteps:
    """The engine's side: each step gives every request its next token. A script that has run out starts again."""

    def __init__(self, script: Script = echo, tokens_per_step: int = 1) -> None:
        self._script = script
        self._tokens_per_step = tokens_per_step
        self._open: dict[int, tuple[EngineRequest, Sequence[int], int]] = {}
        self.num_steps = 0
        self.num_prompt_tokens = 0
        self.num_output_tokens = 0
        self.num_finished = [0] * len(FinishReason)

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def open_ids(self) -> set[int]:
        return set(self._open)

    @property
    def prompts(self) -> list[list[int]]:
        return [request.prompt_token_ids for request, _, _ in self._open.values()]

    def add(self, request: EngineRequest) -> None:
        num_prior = request.num_prior_tokens
        prompt = request.prompt_token_ids[: len(request.prompt_token_ids) - num_prior]
        max_tokens = request.max_tokens + num_prior
        whole = msgspec.structs.replace(request, prompt_token_ids=prompt, max_tokens=max_tokens)
        self._open[request.request_id] = (whole, self._script(whole), num_prior)
        self.num_prompt_tokens += len(request.prompt_token_ids)

    def abort(self, request_id: int) -> list[TokenDelta]:
        if self._open.pop(request_id, None) is None:
            return []
        self.num_finished[FinishReason.ABORT] += 1
        return [TokenDelta(request_id, [], FinishReason.ABORT)]

    def abort_all(self) -> list[TokenDelta]:
        return [delta for request_id in list(self._open) for delta in self.abort(request_id)]

    def step(self) -> list[TokenDelta]:
        self.num_steps += 1
        return [self._advance(request_id) for request_id in list(self._open)]

    def stats(self) -> EngineStats:
        running = [0] * len(RequestClass)
        for request, _, _ in self._open.values():
            running[request.request_class] += 1
        return EngineStats(
            num_running=running,
            num_waiting=[0] * len(RequestClass),
            num_units=INFO.num_units,
            num_free_units=INFO.num_units - self.num_open,
            num_cached_units=0,
            num_steps=self.num_steps,
            num_prompt_tokens=self.num_prompt_tokens,
            num_output_tokens=self.num_output_tokens,
            num_cached_prompt_tokens=0,
            num_queried_prompt_tokens=self.num_prompt_tokens,
            num_preemptions=0,
            num_evicted_blocks=0,
            num_finished=list(self.num_finished),
            step_seconds=0.5,
            schedule_seconds=0.01,
            commit_seconds=0.02,
            execute_seconds=0.4,
        )

    def _advance(self, request_id: int) -> TokenDelta:
        request, script, position = self._open[request_id]
        images = request.images
        token_ids: list[int] = []
        reason, stop_token_id = FinishReason.NONE, None
        while len(token_ids) < self._tokens_per_step and reason is FinishReason.NONE:
            token_ids.append(script[(position + len(token_ids)) % len(script)])
            num_tokens = position + len(token_ids)
            if token_ids[-1] in request.stop_token_ids and num_tokens > request.min_tokens:
                reason, stop_token_id = FinishReason.STOP, token_ids[-1]
            elif num_tokens >= request.max_tokens:
                reason = FinishReason.LENGTH
        self._open[request_id] = (request, script, position + len(token_ids))
        self.num_output_tokens += len(token_ids)
        if reason is not FinishReason.NONE:
            del self._open[request_id]
            self.num_finished[reason] += 1
        return TokenDelta(
            request_id,
            token_ids,
            reason,
            stop_token_id,
            num_cached_tokens=0,
            logprobs=_logprobs(token_ids, request.sampling.num_logprobs, request.sampling.logprob_token_ids),
            vector=_vector(request),
            prompt_logprobs=_prompt_logprobs(request) if position == 0 else None,
            num_prompt_tokens=len(request.prompt_token_ids) + IMAGE_TOKENS * len(images) if images else None,
        )


def _logprobs(token_ids: Sequence[int], num: int | None, named: Sequence[int] = ()) -> list[TokenLogprobs] | None:
    """The token itself is the likeliest, its successors by id follow, or those that were named."""
    if num is None:
        return None
    if named:
        return [TokenLogprobs(t, -0.25, 1, [(i, -1.0 - i) for i in named]) for t in token_ids]
    return [TokenLogprobs(t, -0.25, 1, [((t + i) % VOCAB_SIZE, -0.25 - i) for i in range(num)]) for t in token_ids]


def _prompt_logprobs(request: EngineRequest) -> list[TokenLogprobs | None] | None:
    entries = _logprobs(request.prompt_token_ids, request.sampling.num_prompt_logprobs)
    return None if entries is None else [None, *entries[1:]]


def _vector(request: EngineRequest) -> bytes | None:
    """How often each of the letters a to h is in the prompt."""
    if request.pooling is None:
        return None
    counts = [float(request.prompt_token_ids.count(ord(letter))) for letter in "abcdefgh"]
    counts = counts[: request.pooling.num_dimensions]
    length = (sum(x * x for x in counts) ** 0.5 if request.pooling.is_normalized else 1.0) or 1.0
    return array("f", [x / length for x in counts]).tobytes()


class FakeEngine:
    """An EngineClient. Steps by itself while there is work, unless `is_manual`: then `step()` is up to the test."""

    def __init__(
        self, script: Script = echo, *, tokens_per_step: int = 1, is_manual: bool = False, is_ready: bool = True
    ) -> None:
        self.num_restarts = 0
        self.requests: list[EngineRequest] = []
        self.aborted: list[int] = []
        self.advisories: list[Advisory] = []
        self.sessions = FakeSessions()
        self.advise_seconds = 60.0
        self.answers_advisories = True  # False: they wait until it dies
        self._answers = EngineAnswers[SessionState]()
        self.refusal: EngineError | None = None  # of every request from now on
        self.info_to_be = INFO
        self.num_cached_blocks: int | None = 5
        self._steps = FakeSteps(script, tokens_per_step)
        self._router = DeltaRouter(self._abort)
        self._is_manual = is_manual
        self._is_ready = asyncio.Event()
        if is_ready:
            self._is_ready.set()
        self._death: str | None = None
        self._is_restarting = False
        self._pending: asyncio.Handle | None = None

    @property
    def info(self) -> EngineInfo:
        self._check_alive()
        return self.info_to_be

    @property
    def is_alive(self) -> bool:
        return self._is_ready.is_set() and self._death is None

    @property
    def death(self) -> str | None:
        return None if self._is_restarting else self._death

    @property
    def trouble(self) -> str | None:
        return None

    @property
    def num_open(self) -> int:
        return self._steps.num_open

    @property
    def open_ids(self) -> set[int]:
        return self._steps.open_ids

    async def start(self) -> None:
        await self._is_ready.wait()
        if self._death is not None:
            raise EngineDeadError(self._death)

    async def close(self) -> None:
        self._is_restarting = False
        self.die("The engine was shut down.")

    def _check_alive(self) -> None:
        if self._death is not None:
            raise EngineDeadError(self._death)
        if not self._is_ready.is_set():
            raise EngineDeadError("The engine is starting.", code="starting")

    def become_ready(self) -> None:
        self._is_ready.set()

    def revive(self) -> None:
        """As a supervisor would."""
        self._death, self._is_restarting = None, False
        self.num_restarts += 1

    def die(self, reason: str, code: ErrorCode = ErrorCode.ENGINE_DEAD, *, for_good: bool = True) -> None:
        """for_good: nobody is about to revive it."""
        if self._death is None:
            self._death, self._is_restarting = reason, not for_good
            self._is_ready.set()
            self._steps.abort_all()
            self._router.fail_all(code, reason)
            self._answers.fail_all(reason)

    def stream(self, requests: Sequence[EngineRequest]) -> DeltaStream:
        self._check_alive()
        stream = self._router.open(request.request_id for request in requests)
        for request in requests:
            self._submit(request)
        self._go_on()
        return stream

    async def advise(self, advisory: Advisory) -> SessionState:
        self._check_alive()
        self.advisories.append(advisory)
        if not self.answers_advisories:
            return await self._answers.wait_for(advisory.request_id, self.advise_seconds)
        return self.sessions.advise(advisory)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        self._check_alive()
        return CacheReset(request_id, self.num_cached_blocks)

    def stats(self) -> EngineStats | None:
        return self._steps.stats()

    def step(self) -> None:
        self._router.dispatch(self._steps.step())

    def _submit(self, request: EngineRequest) -> None:
        self.requests.append(request)
        self.sessions.note(request)
        if self.refusal is not None:
            refused = TokenDelta(request.request_id, [], FinishReason.ERROR, error=self.refusal)
            self._router.dispatch([refused])
        else:
            self._steps.add(request)

    def _abort(self, request_id: int) -> None:
        self.aborted.append(request_id)
        self._router.dispatch(self._steps.abort(request_id))

    def _go_on(self) -> None:
        if not self._is_manual and self._pending is None and self.num_open:
            self._pending = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._pending = None
        self.step()
        self._go_on()

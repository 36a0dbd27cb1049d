"""The engine: requests in, steps, deltas out. No sockets, no threads, no clock of its own.

One step is three verbs: the core schedules, the executor executes, the core commits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from schedcore._core import AddStatus, Scheduler, StepOutput
from schedcore.types import (
    Advisory,
    AdvisoryEvent,
    EngineError,
    EngineRequest,
    EngineStats,
    ErrorCode,
    FinishReason,
    SessionAction,
    SessionState,
    TokenDelta,
)
from worker.engine_tiers import EngineTiers, tier_bytes
from worker.executor import Executor, StepResult
from worker.request_check import INT32_MAX, find_problem

Gateway = bytes  # whoever submitted a request and gets its deltas
_FINISH_REASONS = tuple(FinishReason)
_EVENTS, _ACTIONS = tuple(AdvisoryEvent), tuple(SessionAction)
DEFAULT_LEASE_MS = 30_000.0


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """For checks, and for messages that help."""

    vocab_size: int
    max_model_len: int
    max_num_batched_tokens: int
    max_num_waiting: int
    block_size: int = 16
    block_bytes: int = 0


@dataclass(slots=True)
class _OpenRequest:
    gateway: Gateway
    client_id: int  # unique among the open requests of its gateway only


@dataclass(slots=True)
class _Times:
    """Seconds, summed over steps."""

    step: float = 0.0
    schedule: float = 0.0
    execute: float = 0.0
    commit: float = 0.0


class Engine:
    """Every request that is added gets exactly one final delta, whatever happens to it."""

    def __init__(
        self,
        core: Scheduler,
        executor: Executor,
        limits: EngineLimits,
        clock: Callable[[], float],
        tiers: EngineTiers | None = None,
    ) -> None:
        self._core, self._executor, self._limits, self._clock = core, executor, limits, clock
        self._tiers = tiers
        self._open: dict[int, _OpenRequest] = {}  # by internal id, never used twice
        self._internal_id: dict[tuple[Gateway, int], int] = {}
        self._last_id = 0
        self._outbox: defaultdict[Gateway, list[TokenDelta]] = defaultdict(list)
        self._times = _Times()

    def step(self) -> bool:
        """One round. False if there was nothing to run, and nothing is under way."""
        start = self._clock()
        if self._tiers is not None:
            self._tiers.report()
        plan = self._core.schedule(start)
        scheduled = self._clock()
        if self._tiers is not None:
            self._tiers.begin(plan)
        if not plan:
            return self._tiers is not None and self._tiers.wait()
        result = self._executor.execute(plan)
        if self._tiers is not None:
            self._tiers.finish_step()
        executed = self._clock()
        output = self._core.commit(result.sampled_token_ids, executed)
        committed = self._clock()
        self._deliver(output, result)
        times = self._times
        times.schedule += scheduled - start
        times.execute += executed - scheduled
        times.commit += committed - executed
        times.step += self._clock() - start
        return True

    def has_work(self) -> bool:
        return self._core.has_work()

    def add(self, gateway: Gateway, request: EngineRequest) -> None:
        """Accepts the request, or refuses it by its final delta."""
        problem = find_problem(request, self._limits.vocab_size)
        if problem is not None:
            return self._refuse(gateway, request, ErrorCode.INVALID, problem)
        if (gateway, request.request_id) in self._internal_id:
            return self._refuse(gateway, request, ErrorCode.DUPLICATE_ID, f"request {request.request_id} is open")
        self._last_id += 1
        status = self._add_to_core(self._last_id, request)
        if status != AddStatus.OK:
            return self._refuse(gateway, request, *self._explain(status, request))
        self._open[self._last_id] = _OpenRequest(gateway, request.request_id)
        self._internal_id[gateway, request.request_id] = self._last_id
        self._executor.add_request(msgspec.structs.replace(request, request_id=self._last_id))
        return None

    def advise(self, advisory: Advisory) -> SessionState:
        """Where the session's cache is, and what will be done about it."""
        lease_ms = DEFAULT_LEASE_MS if advisory.lease_ms is None else max(0.0, advisory.lease_ms)
        is_known, num_tokens, tier_tokens, action, lease_seconds = self._core.advise(
            advisory.session_id,
            _EVENTS.index(advisory.event),
            self._clock(),
            tenant=advisory.tenant,
            cache_salt=advisory.cache_salt,
            lease_seconds=lease_ms / 1000,
            draft_token_ids=advisory.draft_token_ids,
        )
        return SessionState(
            request_id=advisory.request_id,
            is_known=is_known,
            num_tokens=num_tokens,
            tier_tokens=tier_tokens,
            tier_bytes=tier_bytes(tier_tokens, self._limits.block_size, self._limits.block_bytes),
            action=_ACTIONS[action],
            lease_ms=None if lease_seconds is None else lease_seconds * 1000,
        )

    def abort(self, gateway: Gateway, request_id: int) -> None:
        """Idempotent; the final delta of an open request follows."""
        internal_id = self._internal_id.get((gateway, request_id))
        if internal_id is not None:
            self._core.abort(internal_id)
            self._finish(internal_id, TokenDelta(request_id, [], FinishReason.ABORT))

    def abort_all(self, gateway: Gateway | None = None) -> None:
        """Of one gateway, or of all."""
        for open_request in list(self._open.values()):
            if gateway is None or open_request.gateway == gateway:
                self.abort(open_request.gateway, open_request.client_id)

    def fail_all(self, message: str) -> None:
        """The engine cannot go on. The core is not asked: it may be what failed."""
        error = EngineError(ErrorCode.ENGINE_DEAD, message)
        for internal_id, open_request in list(self._open.items()):
            self._finish(internal_id, TokenDelta(open_request.client_id, [], FinishReason.ERROR, error=error))

    def take_deltas(self) -> dict[Gateway, list[TokenDelta]]:
        """What has happened since the last call, per gateway, in order."""
        taken, self._outbox = self._outbox, defaultdict(list)
        return taken

    def stats(self) -> EngineStats:
        times = self._times
        return EngineStats(
            **self._core.stats(),
            disk_bytes=0 if self._tiers is None else self._tiers.disk_bytes,
            max_disk_bytes=0 if self._tiers is None else self._tiers.max_disk_bytes,
            block_bytes=self._limits.block_bytes,
            step_seconds=times.step,
            schedule_seconds=times.schedule,
            commit_seconds=times.commit,
            execute_seconds=times.execute,
        )

    def close(self) -> None:
        """Ends what is under way between tiers."""
        if self._tiers is not None:
            self._tiers.close()

    def check_invariants(self) -> None:
        """Raises CoreError if memory is not accounted for, or a request is open here that the core does not have."""
        self._core.check_invariants()
        if self._open and not self._core.has_work():
            raise RuntimeError(f"{len(self._open)} requests are open, but the core has none")

    def _deliver(self, output: StepOutput, result: StepResult) -> None:
        """Entry i of the output is entry i of the result: nothing aborts between execute and commit."""
        columns = (output.request_ids, output.token_ids, output.finish_reasons, output.num_cached_tokens)
        logprobs, prompt_logprobs = result.logprobs or {}, result.prompt_logprobs or {}
        for i, (internal_id, token, code, num_cached) in enumerate(zip(*(c.tolist() for c in columns), strict=True)):
            open_request, reason = self._open[internal_id], _FINISH_REASONS[code]
            delta = TokenDelta(
                open_request.client_id,
                [token],
                reason,
                token if reason is FinishReason.STOP else None,
                num_cached,
                [logprobs[i]] if i in logprobs else None,
                prompt_logprobs.get(internal_id),
            )
            if code:
                self._finish(internal_id, delta)
            else:
                self._outbox[open_request.gateway].append(delta)

    def _finish(self, internal_id: int, delta: TokenDelta) -> None:
        open_request = self._open.pop(internal_id)
        del self._internal_id[open_request.gateway, open_request.client_id]
        self._outbox[open_request.gateway].append(delta)
        self._executor.remove_request(internal_id)

    def _add_to_core(self, internal_id: int, request: EngineRequest) -> AddStatus:
        salt, session_id = request.cache_salt, request.session_id
        if request.sampling.num_prompt_logprobs is not None:
            salt, session_id = f"{salt}\0{internal_id}", ""  # a cached prefix would have no logits
        return self._core.add_request(
            internal_id,
            request.prompt_token_ids,
            max_tokens=min(request.max_tokens, INT32_MAX),
            min_tokens=min(request.min_tokens, INT32_MAX),
            stop_token_ids=request.stop_token_ids,
            request_class=int(request.request_class),
            priority=request.priority,
            arrival_time=self._clock() - max(request.age_ms, 0.0) / 1000,
            ttft_target=_seconds(request.ttft_target_ms),
            itl_target=_seconds(request.itl_target_ms),
            cache_salt=salt,
            tenant=request.tenant,
            session_id=session_id,
        )

    def _refuse(self, gateway: Gateway, request: EngineRequest, code: ErrorCode, message: str) -> None:
        error = EngineError(code, message)
        self._outbox[gateway].append(TokenDelta(request.request_id, [], FinishReason.ERROR, error=error))

    def _explain(self, status: AddStatus, request: EngineRequest) -> tuple[ErrorCode, str]:
        limits = self._limits
        if status == AddStatus.QUEUE_FULL:
            return ErrorCode.QUEUE_FULL, f"the engine's queue is full: {limits.max_num_waiting} requests are waiting"
        if status == AddStatus.TOO_LONG:
            return ErrorCode.TOO_LONG, self._explain_length(len(request.prompt_token_ids))
        if status == AddStatus.DUPLICATE_ID:
            return ErrorCode.DUPLICATE_ID, f"request {request.request_id} is open"
        return ErrorCode.INVALID, "the request was refused as invalid"

    def _explain_length(self, num_prompt_tokens: int) -> str:
        limits = self._limits
        if num_prompt_tokens < limits.max_model_len:
            return (
                f"the prompt has {num_prompt_tokens} tokens; without chunked prefill a step takes at most "
                f"{limits.max_num_batched_tokens}"
            )
        return (
            f"the prompt has {num_prompt_tokens} tokens and needs room for one more; "
            f"this engine's context is {limits.max_model_len} tokens"
        )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000

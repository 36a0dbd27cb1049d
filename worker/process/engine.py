"""The engine: requests in, steps, deltas out. No sockets, no threads, no clock of its own.

One step is three verbs: the core schedules, the executor executes, the core commits. Before it a small model may guess
what comes next (worker/speculation/).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from schedcore._core import AddStatus, Scheduler, StepOutput
from schedcore.api.types import (
    DEFAULT_LEASE_MS,
    Advisory,
    AdvisoryEvent,
    EngineError,
    EngineRequest,
    EngineStats,
    ErrorCode,
    FinishReason,
    PoolingKind,
    SessionAction,
    SessionState,
    TokenDelta,
    TokenLogprobs,
)
from schedcore.serving.request_check import INT32_MAX, find_problem
from schedcore.tiers.session_files import SessionName
from worker.grammars.grammars import Grammars
from worker.runner.executor import Executor, StepResult
from worker.speculation.guesser import Guesser, NoGuesser
from worker.tiers.engine_sessions import NoBook, Sessions
from worker.tiers.engine_tiers import NoTiers, Tiers, tier_bytes

logger = logging.getLogger("worker")

Gateway = bytes  # whoever submitted a request and gets its deltas
_FINISH_REASONS = tuple(FinishReason)
_NOT_FINITE = (
    "the model computed numbers that are not finite (NaN or infinity) for this request, so that no token could be "
    "chosen; extreme penalties or biases can cause that, or a dtype too small for the model: see --dtype"
)


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
    session: SessionName | None


@dataclass(frozen=True, slots=True)
class _HeldRequest:
    request: EngineRequest  # under its internal id
    since: float


@dataclass(slots=True)
class _Times:
    """Seconds, summed over steps."""

    step: float = 0.0
    schedule: float = 0.0
    execute: float = 0.0
    commit: float = 0.0

    def add(self, start: float, scheduled: float, executed: float, committed: float, end: float) -> None:
        """When a step, and its parts, began and ended."""
        self.schedule += scheduled - start
        self.execute += executed - scheduled
        self.commit += committed - executed
        self.step += end - start


class Engine:
    """Every request that is added gets exactly one final delta, whatever happens to it.

    It serves any number of gateways, each with request ids of its own, although `hocket serve` starts one per gateway:
    in a fleet every gateway reaches every engine. The internal ids and an outbox per gateway are what that costs.
    """

    def __init__(
        self,
        core: Scheduler,
        executor: Executor,
        limits: EngineLimits,
        clock: Callable[[], float],
        tiers: Tiers | None = None,
        sessions: Sessions | None = None,
        grammars: Grammars | None = None,
        guesser: Guesser | None = None,
    ) -> None:
        """tiers: None: the cache is in the device's memory only. sessions: None: they are known to the core only.
        grammars: None: requests with one are refused. guesser: None: no other model guesses.
        """
        self._core, self._executor, self._limits, self._clock = core, executor, limits, clock
        self._tiers = tiers or NoTiers()
        self._sessions = sessions or NoBook()
        self._grammars = grammars or Grammars(None, limits.vocab_size)
        self._guesser = guesser or NoGuesser()
        self._held: dict[
            int, _HeldRequest
        ] = {}  # by internal id: open, and not known to the core before its grammar is
        self._open: dict[int, _OpenRequest] = {}  # by internal id, never used twice
        self._internal_id: dict[tuple[Gateway, int], int] = {}
        self._last_id = 0
        self._outbox: defaultdict[Gateway, list[TokenDelta]] = defaultdict(list)
        self._times = _Times()

    def step(self) -> bool:
        """One round. False if there was nothing to run, and nothing is under way."""
        has_released = bool(self._held) and self._release_held()
        self._guesser.guess()
        start = self._clock()
        self._tiers.report()
        for request_id, tokens in self._grammars.take_forced():
            self._core.force(request_id, tokens)
        plan = self._core.schedule(start)
        scheduled = self._clock()
        self._tiers.begin(plan)
        if not plan:
            return self._tiers.wait() or self._grammars.wait() or has_released
        result = self._executor.execute(plan)
        self._tiers.finish_step()
        executed = self._clock()
        output = self._core.commit(result.sampled_token_ids, executed)
        committed = self._clock()
        self._deliver(output, result)
        self._times.add(start, scheduled, executed, committed, self._clock())
        return True

    def has_work(self) -> bool:
        return bool(self._held) or self._core.has_work()

    def add(self, gateway: Gateway, request: EngineRequest) -> None:
        """Accepts the request, or refuses it by its final delta."""
        problem = find_problem(request, self._limits.vocab_size)
        if problem is not None:
            return self._refuse(gateway, request, EngineError(ErrorCode.INVALID, problem))
        if (gateway, request.request_id) in self._internal_id:
            return self._refuse(
                gateway, request, EngineError(ErrorCode.DUPLICATE_ID, f"request {request.request_id} is open")
            )
        self._last_id += 1
        if request.grammar is not None:
            return self._hold(gateway, request)
        status = self._add_to_core(self._last_id, request)
        if status != AddStatus.OK:
            return self._refuse(gateway, request, self._explain(status, request))
        self._begin(self._last_id, gateway, request)
        self._admit(msgspec.structs.replace(request, request_id=self._last_id))
        return None

    def reset_prefix_cache(self) -> int | None:
        """Blocks that were dropped; None where slower tiers have copies, from which they would come back."""
        return self._core.reset_prefix_cache() if isinstance(self._tiers, NoTiers) else None

    def advise(self, advisory: Advisory) -> SessionState:
        """Where the session's cache is, and what will be done about it."""
        lease_ms = DEFAULT_LEASE_MS if advisory.lease_ms is None else max(0.0, advisory.lease_ms)
        is_known, num_tokens, tier_tokens, action, lease_seconds = self._core.advise(
            advisory.session_id,
            advisory.event,
            self._clock(),
            tenant=advisory.tenant,
            cache_salt=advisory.cache_salt,
            lease_seconds=lease_ms / 1000,
            draft_token_ids=advisory.draft_token_ids,
        )
        if advisory.event is AdvisoryEvent.RELEASE:  # the book may have what the core no longer knows
            self._sessions.forget(SessionName(advisory.tenant, advisory.cache_salt, advisory.session_id))
        return SessionState(
            request_id=advisory.request_id,
            is_known=is_known,
            num_tokens=num_tokens,
            tier_tokens=tier_tokens,
            tier_bytes=tier_bytes(tier_tokens, self._limits.block_size, self._limits.block_bytes),
            action=SessionAction(action),
            lease_ms=None if lease_seconds is None else lease_seconds * 1000,
        )

    def abort(self, gateway: Gateway, request_id: int) -> None:
        """Idempotent; the final delta of an open request follows."""
        internal_id = self._internal_id.get((gateway, request_id))
        if internal_id in self._held:
            self._close(internal_id, TokenDelta(request_id, [], FinishReason.ABORT))
        elif internal_id is not None:
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
            self._close(internal_id, TokenDelta(open_request.client_id, [], FinishReason.ERROR, error=error))

    def take_deltas(self) -> dict[Gateway, list[TokenDelta]]:
        """What has happened since the last call, per gateway, in order."""
        taken, self._outbox = self._outbox, defaultdict(list)
        return taken

    def stats(self) -> EngineStats:
        times = self._times
        return EngineStats(
            **self._core.stats(),
            disk_bytes=self._tiers.disk_bytes,
            max_disk_bytes=self._tiers.max_disk_bytes,
            **self._tiers.peer_counts(),
            block_bytes=self._limits.block_bytes,
            step_seconds=times.step,
            schedule_seconds=times.schedule,
            commit_seconds=times.commit,
            execute_seconds=times.execute,
            guess_seconds=self._guesser.seconds,
        )

    def close(self) -> None:
        """Ends what is under way between tiers."""
        self._sessions.close()
        self._tiers.close()
        self._grammars.close()

    def check_invariants(self) -> None:
        """Raises CoreError if memory is not accounted for, or a request is open here that the core does not have."""
        self._core.check_invariants()
        if len(self._open) > len(self._held) and not self._core.has_work():
            raise RuntimeError(f"{len(self._open)} requests are open, but the core has none")

    def _deliver(self, output: StepOutput, result: StepResult) -> None:
        """Nothing aborts between execute and commit: every entry of the output is of an open request."""
        columns = (output.request_ids, output.token_ids, output.finish_reasons, output.num_cached_tokens)
        ids, tokens, codes, num_cached = (column.tolist() for column in columns)
        samples = output.sample_indices.tolist() if result.logprobs else []
        prompt_logprobs, vectors = result.prompt_logprobs or {}, result.vectors or {}
        end = 0
        while end < len(ids):
            begin, internal_id = end, ids[end]
            while end < len(ids) and ids[end] == internal_id:  # right guesses
                end += 1
            open_request, reason = self._open[internal_id], _FINISH_REASONS[codes[end - 1]]
            has_failed = reason is FinishReason.ERROR
            last = end - has_failed
            delta = TokenDelta(
                open_request.client_id,
                tokens[begin:last],
                FinishReason.NONE if has_failed else reason,
                tokens[last - 1] if reason is FinishReason.STOP else None,
                num_cached[begin],
                _of_samples(result.logprobs, samples[begin:last]),
                prompt_logprobs.get(internal_id),
                vector=vectors.get(internal_id),
            )
            if reason is FinishReason.NONE or (has_failed and last > begin):
                self._outbox[open_request.gateway].append(delta)
            elif not has_failed:
                self._finish(internal_id, delta)
            if has_failed:
                self._fail(internal_id, (result.problems or {}).get(internal_id))

    def _fail(self, internal_id: int, conflict: str | None) -> None:
        """The model gave numbers that are not finite, or no token fits what was asked for. Others go on.

        conflict: what was asked for excludes all tokens, and how.
        """
        client_id, problem = self._open[internal_id].client_id, self._grammars.problem(internal_id)
        error = EngineError(ErrorCode.NOT_FINITE, _NOT_FINITE)
        if problem is not None:
            error = EngineError(ErrorCode.INVALID, f"the grammar cannot be followed any further: {problem}")
        elif conflict is not None:
            error = EngineError(ErrorCode.INVALID, conflict)
        logger.error("request %d failed: %s", client_id, error.message)
        self._finish(internal_id, TokenDelta(client_id, [], FinishReason.ERROR, error=error))

    def _finish(self, internal_id: int, delta: TokenDelta) -> None:
        self._sessions.note_end(self._close(internal_id, delta).session)

    def _close(self, internal_id: int, delta: TokenDelta) -> _OpenRequest:
        open_request = self._open.pop(internal_id)
        del self._internal_id[open_request.gateway, open_request.client_id]
        self._outbox[open_request.gateway].append(delta)
        if self._held.pop(internal_id, None) is None:
            self._executor.remove_request(internal_id)
            self._guesser.remove(internal_id)
        self._grammars.remove(internal_id)
        return open_request

    def _admit(self, request: EngineRequest) -> None:
        """request: under its internal id, and known to the core."""
        self._executor.add_request(request)
        self._guesser.add(request)

    def _begin(self, internal_id: int, gateway: Gateway, request: EngineRequest) -> None:
        self._open[internal_id] = _OpenRequest(gateway, request.request_id, _session_of(request))
        self._internal_id[gateway, request.request_id] = internal_id

    def _hold(self, gateway: Gateway, request: EngineRequest) -> None:
        """Until its grammar is compiled."""
        self._begin(self._last_id, gateway, request)
        held = msgspec.structs.replace(request, request_id=self._last_id)
        self._held[self._last_id] = _HeldRequest(held, self._clock())
        self._grammars.begin(held)

    def _release_held(self) -> bool:
        """Those whose grammar is compiled go to the core, or end. Whether there were any."""
        compiled = self._grammars.take_compiled()
        for internal_id, problem in compiled:
            held = self._held[internal_id]
            waited_ms = (self._clock() - held.since) * 1000
            age_ms, pause_ms = held.request.age_ms + waited_ms, held.request.pause_ms + waited_ms
            request = msgspec.structs.replace(held.request, age_ms=age_ms, pause_ms=pause_ms)
            status = AddStatus.INVALID if problem is not None else self._add_to_core(internal_id, request)
            if status == AddStatus.OK:
                del self._held[internal_id]
                self._admit(request)
            else:
                error = EngineError(ErrorCode.INVALID, problem) if problem else self._explain(status, request)
                client_id = self._open[internal_id].client_id
                self._close(internal_id, TokenDelta(client_id, [], FinishReason.ERROR, error=error))
        return bool(compiled)

    def _add_to_core(self, internal_id: int, request: EngineRequest) -> AddStatus:
        salt, session = request.cache_salt, _session_of(request)
        if not _may_reuse(request):
            salt = f"{salt}\0{internal_id}"
        now = self._clock()
        # Behind guesses there is no mask, but behind forced tokens; what is sampled beside a vector means nothing.
        is_guessable = request.grammar is None and request.pooling is None
        options: dict[str, Any] = {} if is_guessable else {"is_guessable": False}
        if request.num_prior_tokens:
            last_token_time = now - max(request.pause_ms, 0.0) / 1000
            options |= {"num_prior_tokens": request.num_prior_tokens, "last_token_time": last_token_time}
        return self._core.add_request(
            internal_id,
            request.prompt_token_ids,
            max_tokens=min(request.max_tokens, INT32_MAX),
            min_tokens=0 if request.grammar else min(request.min_tokens, INT32_MAX),  # its end ends the request
            stop_token_ids=request.stop_token_ids,
            request_class=int(request.request_class),
            priority=request.priority,
            arrival_time=now - max(request.age_ms, 0.0) / 1000,
            ttft_target=_seconds(request.targets.ttft_ms),
            itl_target=_seconds(request.targets.itl_ms),
            tpot_target=_seconds(request.targets.tpot_ms),
            cache_salt=salt,
            tenant=request.tenant,
            session_id="" if session is None else session.session_id,
            **options,
        )

    def _refuse(self, gateway: Gateway, request: EngineRequest, error: EngineError) -> None:
        self._outbox[gateway].append(TokenDelta(request.request_id, [], FinishReason.ERROR, error=error))

    def _explain(self, status: AddStatus, request: EngineRequest) -> EngineError:
        limits = self._limits
        if status == AddStatus.QUEUE_FULL:
            message = f"the engine's queue is full: {limits.max_num_waiting} requests are waiting"
            return EngineError(ErrorCode.QUEUE_FULL, message)
        if status == AddStatus.OVERLOADED:
            message = "the server has more work than it can begin in time: try again later"
            return EngineError(ErrorCode.OVERLOADED, message, self._core.retry_seconds())
        if status == AddStatus.TOO_LONG:
            return EngineError(ErrorCode.TOO_LONG, self._explain_length(len(request.prompt_token_ids)))
        if status == AddStatus.DUPLICATE_ID:
            return EngineError(ErrorCode.DUPLICATE_ID, f"request {request.request_id} is open")
        return EngineError(ErrorCode.INVALID, "the request was refused as invalid")

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


def _of_samples(logprobs: dict[int, TokenLogprobs] | None, samples: list[int]) -> list[TokenLogprobs] | None:
    """Of one request's tokens, all or none of which have them."""
    found = [logprobs[i] for i in samples if i in logprobs] if logprobs else None
    return found or None


def _may_reuse(request: EngineRequest) -> bool:
    """A cached prefix would have no logits, and no hidden states but the last."""
    return request.sampling.num_prompt_logprobs is None and (
        request.pooling is None or request.pooling.kind is PoolingKind.LAST
    )


def _session_of(request: EngineRequest) -> SessionName | None:
    """None for a request that shares no cache, too."""
    if not request.session_id or not _may_reuse(request) or request.pooling is not None:
        return None
    return SessionName(request.tenant, request.cache_salt, request.session_id)


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000

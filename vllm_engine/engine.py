"""The engine: requests in, steps of vLLM's EngineCore in this process, deltas out. No sockets, no threads."""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
from vllm.exceptions import VLLMClientError  # which is no ValueError in 0.32

from schedcore.api.types import (
    Advisory,
    EngineError,
    EngineRequest,
    EngineStats,
    ErrorCode,
    FinishReason,
    RequestClass,
    SessionState,
    TokenDelta,
)
from schedcore.serving.request_check import find_problem
from schedcore.tiers.session_files import SessionName
from vllm_engine.images.growing_prompts import GrowingPrompts, Grown
from vllm_engine.requests import to_delta, to_vllm, users_prompt
from vllm_engine.runner.resumption import begin_with_output
from vllm_engine.sessions.announcements import Announcements

logger = logging.getLogger("vllm_engine")

Gateway = bytes
NAP_SECONDS = 0.001  # after a step in which nobody could compute, though somebody waits
UNITS_PER_BLOCK = 2
OVERLOADED = "the server has more work than it can begin in time: try again later"


class _OpenRequest(NamedTuple):
    gateway: Gateway
    request: EngineRequest
    made: Any  # vLLM's

    @property
    def prompt(self) -> list[int]:
        """As it is computed: images have made it longer."""
        found: list[int] = self.made.prompt_token_ids if self.request.images else self.request.prompt_token_ids
        return found


class VllmEngine:
    """Every request that is added gets exactly one final delta, whatever happens to it."""

    def __init__(
        self,
        core: Any,
        steering: Any,
        max_num_waiting: int,
        clock: Callable[[], float],
        adapters: Mapping[str, Any] | None = None,
        announcements: Announcements | None = None,
        images: GrowingPrompts | None = None,
    ) -> None:
        """core: a vllm EngineCore whose scheduler is Steered. steering: what steers it, or None. adapters: vLLM's
        LoRARequests by name. announcements: of sessions over that core; None: all sessions are unknown. images: None:
        no requests with images."""
        self._adapters = adapters or {}
        self._images = images
        self._growing: dict[tuple[Gateway, int], EngineRequest] = {}  # whose images are being prepared
        self._core, self._steering, self._clock = core, steering, clock
        self._announcements = announcements
        self._model = core.vllm_config.model_config
        self._max_num_waiting = max_num_waiting
        self._open: dict[str, _OpenRequest] = {}  # by vLLM's name
        self._names: dict[tuple[Gateway, int], str] = {}
        self._last_name = 0
        self._outbox: defaultdict[Gateway, list[TokenDelta]] = defaultdict(list)
        self._counts = dict.fromkeys(("steps", "prompt", "output", "cached", "queried", "preemptions"), 0)
        self._num_finished = [0] * len(FinishReason)
        self._step_seconds = 0.0

    def step(self) -> bool:
        """One round. False if there was nothing to run, and nothing is under way."""
        if self._announcements is not None:
            self._announcements.advance()
        if self._growing:
            self._begin_grown()
        if not self._core.scheduler.has_requests() and not self._core.batch_queue:
            return bool(self._growing)
        start = self._clock()
        outputs, is_executed = self._core.step_fn()
        self._core.post_step(is_executed)
        every = [output for of_client in (outputs or {}).values() for output in of_client.outputs]
        for output in every:
            self._deliver(output)
        self._counts["steps"] += is_executed
        self._step_seconds += self._clock() - start
        if not is_executed and not every and self._core.scheduler.has_requests():
            time.sleep(NAP_SECONDS)
        return True

    def add(self, gateway: Gateway, request: EngineRequest) -> None:
        """Accepts the request, or refuses it by its final delta."""
        limits = None if self._images is None else self._images.limits
        problem = find_problem(request, self._model.get_vocab_size(), self._adapters, limits)
        if problem is not None:
            return self._refuse(gateway, request, ErrorCode.INVALID, problem)
        if (too_long := self._length_problem(request, len(request.prompt_token_ids))) is not None:
            return self._refuse(gateway, request, *too_long)
        key = gateway, request.request_id
        if key in self._names or key in self._growing:
            return self._refuse(gateway, request, ErrorCode.DUPLICATE_ID, f"request {request.request_id} is open")
        if len(self._core.scheduler.waiting) + len(self._growing) >= self._max_num_waiting:
            return self._refuse(gateway, request, ErrorCode.QUEUE_FULL, f"{self._max_num_waiting} requests are waiting")
        if self._images is None or not request.images:
            return self._begin(gateway, request)
        self._growing[key] = request
        return self._images.begin(key, request, users_prompt(request), self._adapters.get(request.adapter))

    def _begin_grown(self) -> None:
        assert self._images is not None
        if not self._core.scheduler.has_requests():
            self._images.wait(NAP_SECONDS)
        for grown in self._images.take():
            (gateway, _), request = grown.key, self._growing.pop(grown.key)
            if grown.error is not None:
                self._refuse(gateway, request, grown.error.code, grown.error.message)
            else:
                age_ms = request.age_ms + 1e3 * grown.seconds
                self._begin(gateway, msgspec.structs.replace(request, age_ms=age_ms), grown)

    def _begin(self, gateway: Gateway, request: EngineRequest, grown: Grown | None = None) -> None:
        """grown: its prompt, where it has images."""
        prompt = None if grown is None else grown.prompt
        if prompt is not None:
            problem = self._length_problem(request, len(prompt.token_ids) + request.num_prior_tokens)
            if problem is not None:
                return self._refuse(gateway, request, *problem)
        self._last_name += 1
        name = str(self._last_name)
        try:
            adapter = self._adapters.get(request.adapter)
            made = to_vllm(request, name, time.time() - request.age_ms / 1000, adapter, prompt)
            prepared = self._core.preprocess_add_request(made)
            begin_with_output(prepared[0])
        except (ValueError, VLLMClientError) as error:
            return self._refuse(gateway, request, ErrorCode.INVALID, str(error))
        retry_seconds = self._core.scheduler.retry_seconds(prepared[0])
        if retry_seconds is not None:
            return self._refuse(gateway, request, ErrorCode.OVERLOADED, OVERLOADED, retry_seconds)
        self._open[name] = opened = _OpenRequest(gateway, request, prepared[0])
        if (session := _session_of(request)) is not None and self._announcements is not None:
            self._announcements.on_added(session)
        self._names[gateway, request.request_id] = name
        self._counts["queried"] += len(opened.prompt)
        self._core.add_request(*prepared)
        return None

    def reset_prefix_cache(self) -> int | None:
        """Not here: missing from this engine (engine_process.py), so that no gateway asks."""
        return None

    def advise(self, advisory: Advisory) -> SessionState:
        """Where the session's cache is, and what will be done about it."""
        if self._announcements is None:
            return SessionState(request_id=advisory.request_id, is_known=False)
        return self._announcements.advise(advisory)

    def abort(self, gateway: Gateway, request_id: int) -> None:
        """Idempotent; the final delta of an open request follows."""
        name = self._names.get((gateway, request_id))
        if name is not None:
            self._core.abort_requests([name])
            self._close(name, TokenDelta(request_id, [], FinishReason.ABORT))
        elif self._growing.pop((gateway, request_id), None) is not None:
            self._drop_growing(gateway, TokenDelta(request_id, [], FinishReason.ABORT))

    def abort_all(self, gateway: Gateway | None = None) -> None:
        """Of one gateway, or of all."""
        for owner, request, _ in list(self._open.values()):
            if gateway is None or owner == gateway:
                self.abort(owner, request.request_id)
        for owner, request_id in list(self._growing):
            if gateway is None or owner == gateway:
                self.abort(owner, request_id)

    def fail_all(self, message: str) -> None:
        """The engine cannot go on. vLLM is not asked: it may be what failed."""
        error = EngineError(ErrorCode.ENGINE_DEAD, message)
        for name, (_, request, _) in list(self._open.items()):
            self._close(name, TokenDelta(request.request_id, [], FinishReason.ERROR, error=error))
        growing, self._growing = self._growing, {}
        for gateway, request_id in growing:
            self._drop_growing(gateway, TokenDelta(request_id, [], FinishReason.ERROR, error=error))

    def take_deltas(self) -> dict[Gateway, list[TokenDelta]]:
        """What has happened since the last call, per gateway, in order."""
        taken, self._outbox = self._outbox, defaultdict(list)
        return taken

    def stats(self) -> EngineStats:
        scheduler = self._core.scheduler
        advised = self._steering.stats() if self._steering is not None else self._unadvised()
        num_preempted = advised["num_preempted"]
        return EngineStats(
            num_running=advised["num_running"],
            num_waiting=advised["num_waiting"],
            num_units=UNITS_PER_BLOCK * scheduler.num_blocks,
            num_free_units=UNITS_PER_BLOCK * scheduler.num_free_blocks,
            num_cached_units=0,  # vLLM counts what is cached and run by nobody as free
            num_steps=self._counts["steps"],
            num_prompt_tokens=self._counts["prompt"],
            num_output_tokens=self._counts["output"],
            num_cached_prompt_tokens=self._counts["cached"],
            num_queried_prompt_tokens=self._counts["queried"],
            num_preemptions=sum(num_preempted),
            num_evicted_blocks=0,
            num_finished=list(self._num_finished),
            step_seconds=self._step_seconds,
            schedule_seconds=scheduler.steering_seconds,
            commit_seconds=0.0,
            execute_seconds=self._step_seconds - scheduler.steering_seconds,
            num_preempted=num_preempted,
            class_seconds=advised["class_seconds"],
            offline_only_seconds=advised["offline_only_seconds"],
            step_time_error_ratio=advised["step_time_error_ratio"],
            predicted_ttft_seconds=advised["predicted_ttft_seconds"],
            **self._tier_stats(),
            **self._session_stats(),
        )

    def close(self) -> None:
        if self._announcements is not None:
            self._announcements.close()
        if self._images is not None:
            self._images.close()
        self._core.shutdown()

    def check_invariants(self) -> None:
        """Raises RuntimeError if requests are open here and nowhere else, or memory is held for nobody."""
        if self._steering is not None:
            self._steering.check_invariants()
        if self._announcements is not None:
            self._announcements.check_invariants()
        scheduler = self._core.scheduler
        if scheduler.planner is not None:
            scheduler.planner.check_invariants()
        if self._open or scheduler.has_unfinished_requests():
            return
        if scheduler.num_free_blocks != scheduler.num_blocks:
            raise RuntimeError(f"{scheduler.num_blocks - scheduler.num_free_blocks} blocks are held for nobody")

    def _tier_stats(self) -> dict[str, Any]:
        planner = self._core.scheduler.planner
        if planner is None:
            return {}
        counters = planner.counters
        slower = [counters.num_host_tokens, counters.num_disk_tokens]
        return {
            "num_hit_tokens": [max(0, self._counts["cached"] - sum(slower)), *slower],
            "num_restores": counters.num_restores,
            "num_host_blocks": planner.num_slots,
            "num_free_host_blocks": planner.num_free_slots,
            "disk_bytes": planner.disk_bytes,
            "max_disk_bytes": planner.max_disk_bytes,
            "block_bytes": planner.costs.block_bytes,
            "num_saved_blocks": counters.num_saved_blocks,
            "num_stored_blocks": counters.num_stored_blocks,
            "num_fetched_blocks": counters.num_fetched_blocks,
            "num_lost_blocks": counters.num_lost_blocks,
            "num_loaded_blocks": counters.num_loaded_blocks,
        }

    def _session_stats(self) -> dict[str, Any]:
        sessions = self._announcements
        if sessions is None:
            return {}
        return {
            "num_sessions": sessions.num_sessions,
            "num_leases": sessions.num_leases,
            "num_announced_requests": sessions.counters.num_announced_requests,
            "num_prepared_tokens": sessions.counters.num_prepared_tokens,
            "num_wasted_tokens": sessions.counters.num_wasted_tokens,
        }

    def _unadvised(self) -> dict[str, Any]:
        running = {request.request_id for request in self._core.scheduler.running}
        columns = {"num_running": [0] * len(RequestClass), "num_waiting": [0] * len(RequestClass)}
        for name, (_, request, _) in self._open.items():
            columns["num_running" if name in running else "num_waiting"][request.request_class] += 1
        zeros = {"class_seconds": [], "offline_only_seconds": 0.0, "num_preempted": []}
        zeros |= {"step_time_error_ratio": 0.0, "predicted_ttft_seconds": 0.0}
        return columns | zeros

    def _length_problem(self, request: EngineRequest, num_prompt: int) -> tuple[ErrorCode, str] | None:
        """num_prompt: tokens of the prompt with all that its images take."""
        limit = self._model.max_model_len
        if num_prompt + 1 > limit:
            return ErrorCode.TOO_LONG, f"the prompt has {num_prompt} tokens; the context is {limit} tokens"
        scheduler = self._core.scheduler
        most = min(num_prompt + request.max_tokens, limit)
        capacity = scheduler.num_blocks * scheduler.block_size
        if most > capacity:
            return ErrorCode.TOO_LONG, f"{most} tokens do not fit the cache, which holds {capacity}"
        return None

    def _deliver(self, output: Any) -> None:
        open_request = self._open.get(output.request_id)
        if open_request is None:
            if output.finished and self._announcements is not None:
                self._announcements.note_prepared(output.request_id)
            return
        gateway, request, _ = open_request
        prompt = open_request.prompt
        delta = to_delta(request.request_id, output, prompt, len(prompt) if request.images else None)
        self._counts["output"] += len(delta.token_ids)
        if output.prefill_stats is not None:
            self._counts["prompt"] += len(prompt)
            self._counts["cached"] += delta.num_cached_tokens
            if (session := _session_of(request)) is not None and self._announcements is not None:
                self._announcements.on_first_token(session)
        if delta.finish_reason is not FinishReason.NONE:
            self._close(output.request_id, delta)
        elif delta.token_ids or delta.prompt_logprobs:
            self._outbox[gateway].append(delta)

    def _refuse(
        self, gateway: Gateway, request: EngineRequest, code: ErrorCode, message: str, retry_seconds: float = 1.0
    ) -> None:
        self._num_finished[FinishReason.ERROR] += 1
        error = EngineError(code, message, retry_seconds)
        self._outbox[gateway].append(TokenDelta(request.request_id, [], FinishReason.ERROR, error=error))

    def _drop_growing(self, gateway: Gateway, delta: TokenDelta) -> None:
        assert self._images is not None
        self._images.drop((gateway, delta.request_id))
        self._num_finished[delta.finish_reason] += 1
        self._outbox[gateway].append(delta)

    def _close(self, name: str, delta: TokenDelta) -> None:
        gateway, request, made = self._open.pop(name)
        if (session := _session_of(request)) is not None and self._announcements is not None:
            num_computed = min(made.num_computed_tokens, made.num_tokens)
            computed = np.asarray(made.all_token_ids[:num_computed], np.int32)
            self._announcements.on_ended(session, computed, made.lora_request)
        del self._names[gateway, request.request_id]
        self._num_finished[delta.finish_reason] += 1
        self._outbox[gateway].append(delta)


def _session_of(request: EngineRequest) -> SessionName | None:
    if not request.session_id or request.images:  # what is cached of images is found by their content, not by tokens
        return None
    return SessionName(request.tenant, request.cache_salt, request.session_id)

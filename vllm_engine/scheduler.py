"""vLLM's scheduler, told what to do: its memory, block tables and outputs; our order, grants and victims.

Everything that is said to it goes through methods and lists that it has (compat.py compares them). What it makes of a
step is read from its own output: it may still refuse an admission, or put somebody out who needs memory.

As a plug-in, without a gateway: `vllm serve MODEL --scheduler-cls vllm_engine.scheduler.HocketScheduler`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue
from vllm.v1.core.sched.scheduler import Scheduler

from schedcore.api.config import STARVING_TURN_MS
from schedcore.api.types import RequestClass
from vllm_engine.compat import CACHE_HOOKS, check_hooks, check_version, vllm_version
from vllm_engine.first_estimate import BEFORE_ANY, estimates
from vllm_engine.make_advisor import make_advisor
from vllm_engine.steering import TARGETS, Request, Steering, StepAdvice

# vLLM's attributes, which a type checker without vLLM cannot know.
_Scheduler: Any = Any if TYPE_CHECKING else object


class Steered(_Scheduler):
    """Over a scheduler of vLLM's, by inheritance. Until steer() is called it is that scheduler."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        check_version(vllm_version())
        check_hooks(Scheduler)
        check_hooks(KVCacheManager, CACHE_HOOKS, "cache manager")
        super().__init__(*args, **kwargs)
        # Who gives way and who comes in is ours to say: vLLM is to take its lists as they stand.
        self.policy = SchedulingPolicy.FCFS
        self.waiting = create_request_queue(self.policy)
        self.kv_holding_waiting = create_request_queue(self.policy)
        self._steering: Any = None
        self._limits: dict[str, int] = {}
        limits = self.scheduler_config
        self._max_tokens = int(limits.max_num_scheduled_tokens or limits.max_num_batched_tokens)
        self.steering_seconds = 0.0  # that our share of the steps has taken
        self._num_groups = max(1, len(self.kv_cache_config.kv_cache_groups))

    def steer(self, steering: Any) -> None:
        """From now on. REQUIRES: no request is there."""
        self._steering = steering

    @property
    def num_blocks(self) -> int:
        """That each group of layers has for itself; one is vLLM's own."""
        return (int(self.cache_config.num_gpu_blocks) - 1) // self._num_groups

    @property
    def planner(self) -> Any:
        """Of our memory tiers; None where there are none, or vLLM's own."""
        return getattr(self.connector, "planner", None)

    @property
    def num_waiting_online(self) -> int:
        """Requests that somebody waits for; without steering all count as such."""
        if self._steering is None:
            return len(self.waiting)
        return int(self._steering.stats()["num_waiting"][RequestClass.ONLINE])

    @property
    def num_free_blocks(self) -> int:
        return int(self.kv_cache_manager.block_pool.get_num_free_blocks()) // self._num_groups

    def retry_seconds(self, request: Any) -> float | None:
        """None: it may come in. Else, until one like it may: its first token would come too late."""
        if self._steering is None:
            return None
        found: float | None = self._steering.retry_seconds(request, lambda: self._num_cached(request))
        return found

    # ---- the hooks ----

    def add_request(self, request: Any) -> None:
        super().add_request(request)
        if self._steering is not None:
            self._steering.add(request, lambda: self._num_cached(request))

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        if self._steering is not None:
            ended = list(self.requests) if request_ids is None else request_ids
            for request_id in (ended,) if isinstance(ended, str) else tuple(ended):
                self._steering.end(request_id, is_complete=False)
        return super().finish_requests(request_ids, finished_status)

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if self._steering is None or self._pause_state != PauseState.UNPAUSED:
            return super().schedule(throttle_prefills)
        start = time.perf_counter()
        advice = self._steering.advise(self.running, self.num_free_blocks)
        if advice.preempted:
            self._put_out(advice.preempted)
        if advice.order:
            self._reorder(advice.order)
        held = self._hold_back(advice.admitted)
        self._limit_tokens(advice)
        planned = time.perf_counter()
        try:
            output = super().schedule(throttle_prefills)
        finally:
            back = time.perf_counter()
            self._unlimit()
            self._let_go(held)
        self._steering.note(output, self.requests)
        self.steering_seconds += planned - start + time.perf_counter() - back
        return output

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if self._steering is not None:
            start = time.perf_counter()
            if scheduler_output.total_num_scheduled_tokens:
                self._steering.commit(scheduler_output, _all_of(outputs))
            for request_id in self.finished_req_ids:  # since the last step was planned
                self._steering.end(request_id, is_complete=True)
            self.steering_seconds += time.perf_counter() - start
        return outputs

    # ---- what they do ----

    def _num_cached(self, request: Any) -> int:
        """On the device, and in slower tiers behind that."""
        num_here = int(self.kv_cache_manager.get_computed_blocks(request)[1])
        return num_here if self.planner is None else num_here + self.planner.num_known(request, num_here)

    def _put_out(self, requests: list[Any]) -> None:
        for request in requests:
            if self.defer_block_free and not self._request_blocks_can_be_freed(request):
                continue  # its memory would not be there for anybody
            self.running.remove(request)
            self._preempt_request(request, time.monotonic())

    def _reorder(self, order: list[Any]) -> None:
        """Whom vLLM puts out for lack of memory is the last of its list. Who is not known stands first."""
        places = {request.request_id: place for place, request in enumerate(order)}
        self.running.sort(key=lambda request: places.get(request.request_id, -1))

    def _hold_back(self, admitted: list[Any]) -> Any:
        """Takes from the waiting list who may not come in, which saves vLLM from asking for each of them."""
        held = self.waiting
        if not held and not admitted:
            return held  # who is put out meanwhile goes there
        is_all_known = self._steering.num_known == len(self.requests)
        unknown = [] if is_all_known else [r for r in held if not self._steering.knows(r.request_id)]
        allowed = [*unknown, *(request for request in admitted if request not in self.kv_holding_waiting)]
        if allowed:
            held.remove_requests(allowed)
        self.waiting = create_request_queue(self.policy)
        for request in allowed:
            self.waiting.add_request(request)
        return held

    def _let_go(self, held: Any) -> None:
        if self.waiting is held:
            return
        rest, self.waiting = list(self.waiting), held
        for request in reversed(rest):
            self.waiting.prepend_request(request)

    def _limit_tokens(self, advice: StepAdvice) -> None:
        """The step's budget is what was granted, where everybody in it has a grant."""
        if advice.limits:
            self._limits = advice.limits
            self._reserve_prefill_lookahead = self._limited  # vLLM's last cap on a request's tokens; 0: it rests
        is_all_known = self._steering.num_known == len(self.requests)
        if is_all_known and not self.need_mamba_block_aligned_split:  # which reads the budget as the model's
            num_drafts = self.num_spec_tokens * advice.num_granted
            self.max_num_scheduled_tokens = min(self._max_tokens, advice.num_tokens + num_drafts)

    def _unlimit(self) -> None:
        self.__dict__.pop("_reserve_prefill_lookahead", None)
        self.max_num_scheduled_tokens = self._max_tokens

    def _limited(self, request: Any, num_computed_tokens: int, num_new_tokens: int) -> int:
        """In place of vLLM's own, in a step in which somebody is to have fewer tokens than it could."""
        limit = self._limits.get(request.request_id)
        if limit == 0:
            return 0
        if limit is not None:
            num_new_tokens = self._cut(request, num_computed_tokens, num_new_tokens, limit)
        return int(super()._reserve_prefill_lookahead(request, num_computed_tokens, num_new_tokens))

    def _cut(self, request: Any, num_computed: int, num_new: int, granted: int) -> int:
        if granted >= num_new:
            return num_new
        is_decode = num_computed >= request.num_tokens - 1
        if is_decode:  # with its drafts, or not at all
            return num_new if granted > 0 else 0
        if self.need_mamba_block_aligned_split:  # a state is kept at the end of a block only
            block_size = int(self.cache_config.block_size)
            end = (num_computed + granted) // block_size * block_size
            return max(0, min(num_new, end - num_computed))
        return granted

    @property
    def is_exact(self) -> bool:
        """What Steering asks: no drafts, and no cache from elsewhere that may turn out not to be there."""
        return self.num_spec_tokens == 0 and (self.connector is None or self.planner is not None)


def _all_of(outputs: Any) -> Sequence[Any]:
    """Of all clients; mostly there is one."""
    lists = [of_client.outputs for of_client in outputs.values()]
    return lists[0] if len(lists) == 1 else [output for each in lists for output in each]


class SteeredScheduler(Steered, Scheduler):
    """For a vLLM that plans a step after the one before has ended."""


class SteeredAsyncScheduler(Steered, AsyncScheduler):
    """For a vLLM that plans a step while the one before is computed."""


class _SelfSteered(Steered):
    """Steered from the start, by what --additional-config '{"hocket": {...}}' says."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config
        settings = dict(config.get("hocket", {})) if isinstance(config, dict) else {}
        targets = {name: settings.pop(f"{name.removesuffix('_ms')}_target_ms", None) for name in TARGETS}
        advisor = make_advisor(self, {"starving_turn_ms": STARVING_TURN_MS} | settings, estimates(BEFORE_ANY))
        self.steer(Steering(advisor, time.monotonic, self.is_exact, targets))


class HocketScheduler(_SelfSteered, Scheduler):
    """The plug-in. What waits is offline work where its `priority` is above 0."""


class HocketAsyncScheduler(_SelfSteered, AsyncScheduler):
    """The same where vLLM schedules asynchronously."""


__all__ = [
    "HocketAsyncScheduler",
    "HocketScheduler",
    "Request",
    "Steered",
    "SteeredAsyncScheduler",
    "SteeredScheduler",
]

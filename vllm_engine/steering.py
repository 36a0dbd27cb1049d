"""Between vLLM's scheduler and our Advisor: requests get slots, a step's advice becomes lists of requests.

Nothing here imports vLLM; a request is whatever has the few attributes below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from schedcore._core import Advisor, RequestClass

EXTRA = "hocket"  # of SamplingParams.extra_args: what we need to know of a request beside what vLLM does
TARGETS = ("ttft_ms", "itl_ms", "tpot_ms")  # in it
PRIOR = "prior"  # in it: output tokens that another engine gave, before it ended


class Request(Protocol):
    """What is read of vLLM's."""

    request_id: str
    prompt_token_ids: list[int] | None
    max_tokens: int
    num_computed_tokens: int
    priority: int
    cache_salt: str | None
    sampling_params: Any


class PlannedStep(Protocol):
    """Of vLLM's SchedulerOutput."""

    num_scheduled_tokens: dict[str, int]
    total_num_scheduled_tokens: int
    preempted_req_ids: set[str] | None


@dataclass(slots=True)
class StepAdvice:
    """Of one step. Requests that the advisor does not know are in none of it, and are served as vLLM would."""

    num_tokens: int = 0  # of all grants
    num_granted: int = 0  # requests that have one
    limits: dict[str, int] = field(default_factory=dict)  # tokens at most, 0: it rests; others get all that is left
    admitted: list[Any] = field(default_factory=list)  # waiting ones, in this order
    preempted: list[Any] = field(default_factory=list)
    order: list[Any] = field(default_factory=list)  # of those that run on, who gives way last first; empty: as it is


class Steering:
    """Not thread-safe: one per scheduler, called by it.

    Mostly a step is the advice to the token, and its end one token for each request: then nothing is told of each
    request, and our share of a step does not grow with their number in Python. Where a count differs, all is told.
    """

    def __init__(
        self,
        advisor: Advisor,
        clock: Callable[[], float],
        is_exact: bool = False,
        targets: Mapping[str, float | None] = {},
    ) -> None:
        """is_exact: what a step computes stays computed, and it samples one token per request: no drafts, no cache that
        is loaded from elsewhere and may turn out not to be there. targets: by TARGETS, of online requests that say
        nothing themselves."""
        self._advisor, self._clock, self._is_exact = advisor, clock, is_exact
        self._targets = dict(targets)
        self._slots: dict[str, int] = {}
        self._requests: dict[int, Any] = {}  # by slot
        self._noted: deque[int] = deque()  # steps under way, by what names them
        self._advice = StepAdvice()
        self.num_told = 0  # steps before which who runs had to be told

    @property
    def num_known(self) -> int:
        return len(self._slots)

    def knows(self, request_id: str) -> bool:
        return request_id in self._slots

    def retry_seconds(self, request: Request, num_cached: Callable[[], int]) -> float | None:
        """None: its first token can come in time. Else, until one like it would be taken. Nothing is added."""
        if request.sampling_params is None or not request.prompt_token_ids:
            return None
        extra = (request.sampling_params.extra_args or {}).get(EXTRA, {})
        if PRIOR in extra:  # it has had its first token
            return None
        request_class = int(extra.get("class", _class_by_priority(request.priority)))
        tenant = str(extra.get("tenant", ""))
        if self._advisor.accepts(request.prompt_token_ids, num_cached(), request_class, tenant):
            return None
        return self._advisor.retry_seconds()

    def add(self, request: Request, num_cached: Callable[[], int]) -> None:
        """num_cached: of its prompt's tokens. One that samples nothing, or has no token ids, is left alone."""
        if request.sampling_params is None or not request.prompt_token_ids or self.knows(request.request_id):
            return
        extra = (request.sampling_params.extra_args or {}).get(EXTRA, {})
        now, prior = self._clock(), extra.get(PRIOR, ())
        request_class = int(extra.get("class", _class_by_priority(request.priority)))
        is_online = request_class == RequestClass.ONLINE
        ttft, itl, tpot = (
            _seconds(extra.get(name, self._targets.get(name) if is_online else None)) for name in TARGETS
        )
        try:
            slot = self._advisor.add_request(
                [*request.prompt_token_ids, *prior] if prior else request.prompt_token_ids,
                max_tokens=request.max_tokens - len(prior),
                request_class=request_class,
                priority=int(extra.get("priority", 0)),
                arrival_time=now - float(extra.get("age_ms", 0.0)) / 1000,
                ttft_target=ttft,
                itl_target=itl,
                tpot_target=tpot,
                cache_salt=_salt(request),
                tenant=str(extra.get("tenant", "")),
                num_prior_tokens=len(prior),
                last_token_time=now - float(extra.get("pause_ms", 0.0)) / 1000,
            )
        except ValueError:  # nothing that we would plan for; vLLM says what is wrong with it
            return
        self._slots[request.request_id] = slot
        self._requests[slot] = request
        if cached := num_cached():
            self._advisor.set_cached(slot, cached)

    def end(self, request_id: str, is_complete: bool) -> None:
        """Idempotent."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            del self._requests[slot]
            self._advisor.remove(slot, is_complete)

    def advise(self, running: Sequence[Request], num_free_blocks: int) -> StepAdvice:
        found = self._compose(running, num_free_blocks)
        num_tokens, num_granted, preempted, admitted, limited, limits, order = found
        advice = self._advice = StepAdvice(num_tokens, num_granted)
        requests = self._requests
        if len(limited):
            pairs = zip(limited.tolist(), limits.tolist(), strict=True)
            advice.limits = {requests[slot].request_id: n for slot, n in pairs}
        if len(admitted):
            advice.admitted = [requests[slot] for slot in admitted.tolist()]
        if len(preempted):
            advice.preempted = [requests[slot] for slot in preempted.tolist()]
        if len(order):
            advice.order = [requests[slot] for slot in order.tolist()]
        return advice

    def _compose(self, running: Sequence[Request], num_free_blocks: int) -> tuple[Any, ...]:
        now, slots = self._clock(), self._slots
        if self._is_exact:
            found = self._advisor.compose_known(now, len(running), num_free_blocks)
            if found is not None:
                return found
        self.num_told += 1
        known = [request for request in running if request.request_id in slots]
        return self._advisor.compose(
            now,
            _column([slots[request.request_id] for request in known]),
            _column([request.num_computed_tokens for request in known]),
            num_free_blocks,
        )

    def note(self, step: PlannedStep, requests: Mapping[str, Request]) -> None:
        """The step has been planned, and its tokens count as computed by now. requests: all of the scheduler's."""
        slots, tokens = self._slots, step.num_scheduled_tokens
        if step.preempted_req_ids and (gone := [slots[i] for i in step.preempted_req_ids if i in slots]):
            self._advisor.note_preempted(_column(gone))
        if not tokens:
            return
        if len(requests) == len(slots) and self._is_advice(step):
            came = self._advice.admitted
            found = _column([request.num_computed_tokens - tokens[request.request_id] for request in came])
            admitted = _column([slots[request.request_id] for request in came])
            self._advisor.note_advised(self._clock(), admitted, found)
        else:
            rows = [(slots[i], n, requests[i].num_computed_tokens - n) for i, n in tokens.items() if i in slots]
            if not rows:
                return
            self._advisor.note_scheduled(self._clock(), *map(_column, zip(*rows, strict=True)))
        self._noted.append(id(step))

    def _is_advice(self, step: PlannedStep) -> bool:
        """Nobody gets more than its grant, so as many requests with as many tokens in all are those of the grants."""
        advice, tokens = self._advice, step.num_scheduled_tokens
        is_as_many = len(tokens) == advice.num_granted and step.total_num_scheduled_tokens == advice.num_tokens
        return self._is_exact and is_as_many and all(request.request_id in tokens for request in advice.admitted)

    def commit(self, step: object, outputs: Sequence[Any]) -> None:
        """The step has ended with these outputs of vLLM's."""
        if not self._noted or self._noted[0] != id(step):
            return
        self._noted.popleft()
        if self._is_exact and self._advisor.commit_expected(self._clock(), len(outputs)):
            return
        sampled = ((output.request_id, len(output.new_token_ids)) for output in outputs)
        rows = [(self._slots[i], n) for i, n in sampled if i in self._slots]
        slots, tokens = map(_column, zip(*rows, strict=True)) if rows else (_column(()), _column(()))
        self._advisor.commit(self._clock(), slots, tokens)

    def stats(self) -> dict[str, Any]:
        return self._advisor.stats()

    def check_invariants(self) -> None:
        """Raises CoreError on the first broken one."""
        self._advisor.check_invariants()


_NOBODY = np.empty(0, np.int32)


def _column(values: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    return np.fromiter(values, np.int32, len(values)) if values else _NOBODY


def _class_by_priority(priority: int) -> int:
    """Where a request says nothing else, vLLM's larger numbers are work that can wait."""
    return int(RequestClass.OFFLINE if priority > 0 else RequestClass.ONLINE)


def _salt(request: Request) -> str:
    """Equal tokens are equal caches under equal ones. Those of different images look the same."""
    features = getattr(request, "mm_features", None) or ()
    return "|".join([request.cache_salt or "", *(feature.identifier for feature in features)])


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else float(milliseconds) / 1000

"""What arrives: requests as columns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.token_ids import Prompts

Bool = npt.NDArray[np.bool_]
Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]

NO_REQUEST = -1
NO_TARGET = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One entry per request. A request that follows another arrives `arrival_s` after the end of that one."""

    arrival_s: Float64  # from the start, or the delay behind the request that it follows
    follows: Int32  # index of that request, or NO_REQUEST
    output_tokens: Int32  # generated exactly, unless the context ends before
    request_class: UInt8  # RequestClass
    priority: Int64  # smaller runs earlier, within policy `priority`
    ttft_target_ms: Float64  # NO_TARGET: none
    itl_target_ms: Float64
    tpot_target_ms: Float64
    prompts: Prompts
    source: str  # for people: where it comes from

    def __post_init__(self) -> None:
        sizes = {len(column) for column in (self.arrival_s, self.follows, self.output_tokens, self.request_class)}
        targets = (self.ttft_target_ms, self.itl_target_ms, self.tpot_target_ms)
        sizes |= {len(column) for column in (self.priority, *targets)}
        if sizes != {len(self.prompts.continuations)}:
            raise ValueError(f"the columns of a workload must have one length, not {sorted(sizes)}")

    def __len__(self) -> int:
        return len(self.arrival_s)

    @property
    def input_tokens(self) -> Int32:
        return self.prompts.input_tokens

    def with_class(self, request_class: RequestClass) -> Workload:
        return replace(self, request_class=np.full(len(self), request_class, np.uint8))

    def with_priority(self, priority: int) -> Workload:
        return replace(self, priority=np.full(len(self), priority, np.int64))

    def with_targets(self, ttft_ms: float | None, itl_ms: float | None, tpot_ms: float | None = None) -> Workload:
        """The same targets for every request; None for no target."""
        return replace(
            self,
            ttft_target_ms=np.full(len(self), NO_TARGET if ttft_ms is None else ttft_ms),
            itl_target_ms=np.full(len(self), NO_TARGET if itl_ms is None else itl_ms),
            tpot_target_ms=np.full(len(self), NO_TARGET if tpot_ms is None else tpot_ms),
        )

    def select(self, keep: Bool) -> Workload:
        """The requests of a mask. What follows a request that is left out is left out as well, and so on."""
        keep = keep.copy()
        for request in self._followers_in_order():
            keep[request] &= keep[self.follows[request]]
        index = np.flatnonzero(keep)
        new_index = np.full(len(self) + 1, NO_REQUEST, np.int32)  # the last entry stands for NO_REQUEST
        new_index[index] = np.arange(index.size, dtype=np.int32)
        return replace(
            self,
            arrival_s=self.arrival_s[index],
            follows=new_index[self.follows[index]],
            output_tokens=self.output_tokens[index],
            request_class=self.request_class[index],
            priority=self.priority[index],
            ttft_target_ms=self.ttft_target_ms[index],
            itl_target_ms=self.itl_target_ms[index],
            tpot_target_ms=self.tpot_target_ms[index],
            prompts=self.prompts.select(index),
        )

    def fitting(self, max_model_len: int) -> Workload:
        """Without the requests whose prompt and answer exceed the context."""
        return self.select(self.input_tokens.astype(np.int64) + self.output_tokens <= max_model_len)

    def merged(self, other: Workload) -> Workload:
        """Both side by side; they share no prefix."""
        part = self.prompts.num_parts
        shifted = np.where(other.follows == NO_REQUEST, NO_REQUEST, other.follows + len(self)).astype(np.int32)
        return Workload(
            arrival_s=np.concatenate([self.arrival_s, other.arrival_s]),
            follows=np.concatenate([self.follows, shifted]),
            output_tokens=np.concatenate([self.output_tokens, other.output_tokens]),
            request_class=np.concatenate([self.request_class, other.request_class]),
            priority=np.concatenate([self.priority, other.priority]),
            ttft_target_ms=np.concatenate([self.ttft_target_ms, other.ttft_target_ms]),
            itl_target_ms=np.concatenate([self.itl_target_ms, other.itl_target_ms]),
            tpot_target_ms=np.concatenate([self.tpot_target_ms, other.tpot_target_ms]),
            prompts=self.prompts.joined(other.prompts.in_part(part)),
            source=f"{self.source} + {other.source}",
        )

    def _followers_in_order(self) -> list[int]:
        """Every request that follows another, after the one that it follows."""
        if not np.any(self.follows != NO_REQUEST):
            return []
        follower = {int(leader): i for i, leader in enumerate(self.follows) if leader != NO_REQUEST}
        chain = []
        for root in np.flatnonzero(self.follows == NO_REQUEST):
            request = follower.get(int(root))
            while request is not None:
                chain.append(request)
                request = follower.get(request)
        return chain


def make_workload(
    arrival_s: npt.ArrayLike,
    prompts: Prompts,
    output_tokens: npt.ArrayLike,
    *,
    follows: npt.ArrayLike | None = None,
    source: str = "made by hand",
) -> Workload:
    """Online requests of equal priority and without targets. Raises ValueError if the columns do not fit together."""
    arrivals = np.asarray(arrival_s, np.float64)
    n = arrivals.size
    return Workload(
        arrival_s=arrivals,
        follows=np.full(n, NO_REQUEST, np.int32) if follows is None else np.asarray(follows, np.int32),
        output_tokens=np.asarray(output_tokens, np.int32),
        request_class=np.full(n, RequestClass.ONLINE, np.uint8),
        priority=np.zeros(n, np.int64),
        ttft_target_ms=np.full(n, NO_TARGET),
        itl_target_ms=np.full(n, NO_TARGET),
        tpot_target_ms=np.full(n, NO_TARGET),
        prompts=prompts,
        source=source,
    )


def merge(workloads: Iterable[Workload]) -> Workload:
    return reduce(Workload.merged, workloads)

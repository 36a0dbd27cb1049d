"""Those that no engine has, in the order in which they go on, and how many may begin to at a time. Pure.

An engine that has just started gets as much to compute as fills it, not all at once: who is more important goes first,
and an engine's queue, which is bounded, has room for those who come anew.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator

from gateway.resumption.open_request import OpenRequest
from schedcore.api.types import EngineInfo

WINDOW_STEPS = 2  # that what has been submitted and has got nothing yet may take: one runs, one is ready


def _order(one: OpenRequest) -> tuple[bool, int, bool, int, float, int]:
    return one.order


class ResumeQueue:
    def __init__(self) -> None:
        self._waiting: list[OpenRequest] = []  # in their order

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[OpenRequest]:
        return iter(list(self._waiting))

    def add(self, one: OpenRequest) -> None:
        insort(self._waiting, one, key=_order)

    def discard(self, one: OpenRequest) -> None:
        if one in self._waiting:
            self._waiting.remove(one)

    def take(self, under_way: Collection[OpenRequest], info: EngineInfo, now: float) -> OpenRequest | None:
        """The first, if it may go on now; nobody overtakes. under_way: submitted again, without a token since."""
        if not self._waiting or not _may_go(self._waiting[0], under_way, info, now):
            return None
        return self._waiting.pop(0)


def _may_go(one: OpenRequest, under_way: Collection[OpenRequest], info: EngineInfo, now: float) -> bool:
    if now < one.not_before:
        return False
    if not under_way:
        return True
    if one.is_suspect or any(other.is_suspect for other in under_way):
        return False
    if not one.was_proven and any(other.was_proven and _is_before(other, one) for other in under_way):
        return False  # if the engine dies now, it is plain that none of those was to blame
    num_tokens = one.num_tokens + sum(other.num_tokens for other in under_way)
    return num_tokens <= WINDOW_STEPS * info.max_num_batched_tokens and len(under_way) < info.max_num_seqs


def _is_before(other: OpenRequest, one: OpenRequest) -> bool:
    """Or beside it: by class."""
    return other.request.request_class <= one.request.request_class

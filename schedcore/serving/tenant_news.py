"""What each gateway has not seen of tenants: what of theirs waits in this engine that other gateways sent, and what
their offline work has been served for others.

So a tenant's share of the queue, and what it has had, are the same whichever gateway it asks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from schedcore.api.types import EngineRequest, FinishReason, RequestClass, TokenDelta
from schedcore.api.wire import OTHER_TENANTS, TenantNote

MAX_TENANTS = 64  # and classes of theirs, that are told by name; those with least are added up

_Key = tuple[str, RequestClass]


@dataclass(slots=True)
class _Open:
    key: _Key
    num_prompt_tokens: int
    is_waiting: bool = True  # for its first token


@dataclass(slots=True)
class _Waiting:
    num_requests: int = 0
    num_tokens: int = 0


class TenantNews:
    """Invariant: `_waiting` has the sums of the waiting requests in `_open`, and nobody who has none."""

    def __init__(self) -> None:
        self._open: dict[bytes, dict[int, _Open]] = {}  # by gateway: what waits, and offline requests to their end
        self._waiting: dict[bytes, dict[_Key, _Waiting]] = {}
        self._served: dict[bytes, Counter[str]] = {}  # offline tokens that others were served, since it was last told

    def join(self, gateway: bytes) -> None:
        self._open[gateway], self._waiting[gateway], self._served[gateway] = {}, {}, Counter()

    def forget(self, gateway: bytes) -> None:
        """It is gone, and what it had open."""
        for known in (self._open, self._waiting, self._served):
            known.pop(gateway, None)

    def note_request(self, gateway: bytes, request: EngineRequest) -> None:
        if gateway not in self._open:  # it is gone, and its request is aborted next
            return
        key, num_tokens = (request.tenant, request.request_class), len(request.prompt_token_ids)
        self._open[gateway][request.request_id] = _Open(key, num_tokens)
        waiting = self._waiting[gateway].setdefault(key, _Waiting())
        waiting.num_requests += 1
        waiting.num_tokens += num_tokens

    def note_deltas(self, gateway: bytes, deltas: Sequence[TokenDelta]) -> None:
        opened = self._open.get(gateway)
        if not opened:  # all of it decodes
            return
        for delta in deltas:
            if (one := opened.get(delta.request_id)) is not None:
                self._note_delta(gateway, one, delta)
                if not one.is_waiting and (_has_ended(delta) or one.key[1] is not RequestClass.OFFLINE):
                    del opened[delta.request_id]

    def take(self, gateway: bytes) -> list[TenantNote]:
        """All that waits of others, those with most tokens by name; and what was served since the last call."""
        waiting: dict[_Key, _Waiting] = {}
        for other, by_key in self._waiting.items():
            if other != gateway:
                for key, found in by_key.items():
                    total = waiting.setdefault(key, _Waiting())
                    total.num_requests += found.num_requests
                    total.num_tokens += found.num_tokens
        served = self._served.get(gateway)
        if served:
            self._served[gateway] = Counter()
            for tenant in served:
                waiting.setdefault((tenant, RequestClass.OFFLINE), _Waiting())
        if not waiting:
            return []
        notes = [
            TenantNote(
                tenant,
                request_class,
                found.num_requests,
                found.num_tokens,
                served[tenant] if served and request_class is RequestClass.OFFLINE else 0,
            )
            for (tenant, request_class), found in waiting.items()
        ]
        return notes if len(notes) <= MAX_TENANTS else _shortened(notes)

    def _note_delta(self, gateway: bytes, one: _Open, delta: TokenDelta) -> None:
        num_tokens = len(delta.token_ids)
        if one.is_waiting and (num_tokens or _has_ended(delta)):
            one.is_waiting = False
            waiting = self._waiting[gateway][one.key]
            waiting.num_requests -= 1
            waiting.num_tokens -= one.num_prompt_tokens
            if not waiting.num_requests:
                del self._waiting[gateway][one.key]
            num_tokens += one.num_prompt_tokens if num_tokens else 0  # computed, or it would have no token
        if num_tokens and one.key[1] is RequestClass.OFFLINE:
            for other, served in self._served.items():
                if other != gateway:
                    served[one.key[0]] += num_tokens


def _has_ended(delta: TokenDelta) -> bool:
    return delta.finish_reason is not FinishReason.NONE


def _shortened(notes: list[TenantNote]) -> list[TenantNote]:
    notes.sort(key=lambda note: note.num_waiting_tokens + note.num_served, reverse=True)
    rest: dict[RequestClass, TenantNote] = {}
    for note in notes[MAX_TENANTS:]:
        so_far = rest.get(note.request_class, TenantNote(OTHER_TENANTS, note.request_class))
        rest[note.request_class] = TenantNote(
            OTHER_TENANTS,
            note.request_class,
            so_far.num_waiting + note.num_waiting,
            so_far.num_waiting_tokens + note.num_waiting_tokens,
            so_far.num_served + note.num_served,
        )
    return [*notes[:MAX_TENANTS], *rest.values()]

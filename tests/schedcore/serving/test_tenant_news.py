"""What each gateway hears of tenants at the others, against plain sums."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedcore.api.types import EngineRequest, FinishReason, RequestClass, TokenDelta
from schedcore.api.wire import OTHER_TENANTS, TenantNote
from schedcore.serving import tenant_news
from schedcore.serving.tenant_news import TenantNews

ONE, TWO, THREE = GATEWAYS = (b"gateway-1", b"gateway-2", b"gateway-3")
ONLINE, OFFLINE = RequestClass.ONLINE, RequestClass.OFFLINE


def request(request_id: int, tenant: str = "a", num_tokens: int = 10, kind: RequestClass = ONLINE) -> EngineRequest:
    return EngineRequest(request_id, [7] * num_tokens, 4, tenant=tenant, request_class=kind)


def delta(request_id: int, num_tokens: int = 1, *, ends: bool = False) -> TokenDelta:
    return TokenDelta(request_id, [7] * num_tokens, FinishReason.LENGTH if ends else FinishReason.NONE)


def news(*gateways: bytes) -> TenantNews:
    found = TenantNews()
    for gateway in gateways:
        found.join(gateway)
    return found


def test_what_waits_is_told_to_the_other_gateways_until_it_has_a_token() -> None:
    known = news(ONE, TWO)
    known.note_request(ONE, request(1))
    known.note_request(ONE, request(2, "b", 30))
    known.note_request(TWO, request(1, "b", 5))
    assert known.take(TWO) == known.take(TWO) == [TenantNote("a", ONLINE, 1, 10), TenantNote("b", ONLINE, 1, 30)]
    assert known.take(ONE) == [TenantNote("b", ONLINE, 1, 5)]
    known.note_deltas(ONE, [delta(1), delta(2, 0, ends=True)])  # the second one is refused, or aborted
    assert known.take(TWO) == []


def test_a_gateway_that_is_gone_has_nothing_that_waits() -> None:
    known = news(ONE, TWO)
    known.note_request(ONE, request(1))
    known.forget(ONE)
    known.note_request(ONE, request(2))  # that had arrived with its end
    known.note_deltas(ONE, [delta(1, ends=True)])
    assert known.take(TWO) == []


def test_a_gateway_that_comes_late_hears_what_waits() -> None:
    known = news(ONE)
    known.note_request(ONE, request(1))
    known.join(TWO)
    assert known.take(TWO) == [TenantNote("a", ONLINE, 1, 10)]


def test_offline_tokens_are_told_once() -> None:
    known = news(ONE, TWO)
    known.note_request(ONE, request(1, kind=OFFLINE))
    known.note_deltas(ONE, [delta(1)])
    known.note_deltas(ONE, [delta(1, 2)])
    assert known.take(TWO) == [TenantNote("a", OFFLINE, num_served=13)]
    assert known.take(TWO) == []
    known.note_deltas(ONE, [delta(1, ends=True)])
    known.note_deltas(ONE, [delta(1)])  # of no request
    assert known.take(TWO) == [TenantNote("a", OFFLINE, num_served=1)]
    assert known.take(ONE) == []


def test_tenants_with_little_are_told_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenant_news, "MAX_TENANTS", 2)
    known = news(ONE, TWO)
    for i in range(5):
        known.note_request(ONE, request(i, f"t{i}", 10 + i))
    told = known.take(TWO)
    assert told[:2] == [TenantNote("t4", ONLINE, 1, 14), TenantNote("t3", ONLINE, 1, 13)]
    assert told[2:] == [TenantNote(OTHER_TENANTS, ONLINE, 3, 10 + 11 + 12)]


@dataclass
class Known:
    request: EngineRequest
    has_token: bool = False


STEPS = st.lists(
    st.tuples(
        st.sampled_from(GATEWAYS),
        st.sampled_from(["submit", "submit", "step", "end", "take", "come back"]),
        st.integers(0, 3),
        st.sampled_from("ab"),
        st.sampled_from([ONLINE, OFFLINE]),
    ),
    max_size=40,
)


@given(STEPS)
def test_counts_are_those_of_who_looks_at_every_request(
    steps: list[tuple[bytes, str, int, str, RequestClass]],
) -> None:
    known = news(*GATEWAYS)
    opened: dict[bytes, dict[int, Known]] = {gateway: {} for gateway in GATEWAYS}
    untold: dict[bytes, Counter[str]] = {gateway: Counter() for gateway in GATEWAYS}
    for number, (gateway, what, which, tenant, kind) in enumerate(steps):
        mine = opened[gateway]
        if what == "submit":
            asked = request(number, tenant, 1 + which, kind)
            mine[number] = Known(asked)
            known.note_request(gateway, asked)
        elif what == "come back":
            opened[gateway], untold[gateway] = {}, Counter()
            known.forget(gateway)
            known.join(gateway)
        elif what == "take":
            check(known.take(gateway), gateway, opened, untold)
        elif mine:
            request_id = list(mine)[which % len(mine)]
            one = mine[request_id]
            known.note_deltas(gateway, [delta(request_id, which, ends=what == "end")])
            if one.request.request_class is OFFLINE and which:
                cost = which + (0 if one.has_token else len(one.request.prompt_token_ids))
                for other in GATEWAYS:
                    if other != gateway:
                        untold[other][one.request.tenant] += cost
            one.has_token |= which > 0
            if what == "end":
                del mine[request_id]
    for gateway in GATEWAYS:
        check(known.take(gateway), gateway, opened, untold)


def check(
    told: list[TenantNote], gateway: bytes, opened: dict[bytes, dict[int, Known]], untold: dict[bytes, Counter[str]]
) -> None:
    waiting: Counter[tuple[str, RequestClass]] = Counter()
    tokens: Counter[tuple[str, RequestClass]] = Counter()
    for other in GATEWAYS:
        for one in opened[other].values():
            if other != gateway and not one.has_token:
                waiting[one.request.tenant, one.request.request_class] += 1
                tokens[one.request.tenant, one.request.request_class] += len(one.request.prompt_token_ids)
    assert {(n.tenant, n.request_class): n.num_waiting for n in told if n.num_waiting} == dict(waiting)
    assert {(n.tenant, n.request_class): n.num_waiting_tokens for n in told if n.num_waiting_tokens} == dict(tokens)
    assert {n.tenant: n.num_served for n in told if n.num_served} == dict(untold[gateway])
    untold[gateway].clear()

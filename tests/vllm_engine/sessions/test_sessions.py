"""Sessions, leases, prefetch and drafts over vLLM itself. Needs vLLM: make test-vllm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("vllm")

from fakes.vllm_served import SIZE, VllmServed
from schedcore.api.types import Advisory, AdvisoryEvent, SessionAction


@pytest.fixture(scope="module")
def served() -> Iterator[VllmServed]:
    made = VllmServed(host_cache_bytes=256 << 20)
    try:
        yield made
    finally:
        made.engine.close()


def test_a_session_that_nobody_knows_leaves_no_trace(served: VllmServed) -> None:
    for event in AdvisoryEvent:
        assert not served.advise(event, "nobody").is_known
    assert served.engine.stats().num_leases == 0


def test_where_a_sessions_cache_is(served: VllmServed) -> None:
    prompt = served.tokens(5 * SIZE)
    served.ask(prompt, session_id="where")
    state = served.advise(AdvisoryEvent.QUERY, "where")
    assert state.is_known
    assert state.num_tokens == 5 * SIZE + 3, "the last one that was sampled is not computed"
    assert state.tier_tokens == [5 * SIZE, 0, 0]
    assert state.tier_bytes[0] > 0
    served.crowd_out()
    assert served.advise(AdvisoryEvent.QUERY, "where").tier_tokens == [0, 5 * SIZE, 0]
    other = served.engine.advise(Advisory("where", AdvisoryEvent.QUERY, tenant="somebody else"))
    assert not other.is_known
    assert served.advise(AdvisoryEvent.RELEASE, "where").action is SessionAction.RELEASE
    assert not served.advise(AdvisoryEvent.QUERY, "where").is_known


def test_an_announced_session_is_on_the_device_when_its_request_comes(served: VllmServed) -> None:
    prompt = served.tokens(6 * SIZE)
    expected, _ = served.ask(prompt, session_id="back")
    served.crowd_out()
    before = served.engine.stats()
    state = served.advise(AdvisoryEvent.TYPING, "back")
    assert (state.action, state.tier_tokens) == (SessionAction.PREFETCH, [0, 6 * SIZE, 0])
    assert state.lease_ms is not None
    served.rest()
    state = served.advise(AdvisoryEvent.QUERY, "back")
    assert state.tier_tokens == [6 * SIZE, 0, 0]
    after = served.engine.stats()
    assert after.num_prepared_tokens == before.num_prepared_tokens + 6 * SIZE
    assert after.num_hit_tokens == before.num_hit_tokens, "nobody has asked for it yet"
    assert (after.num_finished, after.num_output_tokens) == (before.num_finished, before.num_output_tokens)
    tokens, num_cached = served.ask([*prompt, *served.tokens(10)], session_id="back")
    assert num_cached == 6 * SIZE
    assert served.engine.stats().num_leases == before.num_leases
    assert served.engine.stats().num_announced_requests == before.num_announced_requests + 1
    assert served.ask(prompt)[0] == expected
    del tokens


def test_a_draft_is_computed_ahead(served: VllmServed) -> None:
    prompt = served.tokens(3 * SIZE)
    served.ask(prompt, session_id="draft")
    draft = [*prompt, *served.tokens(4 * SIZE + 5)]
    state = served.advise(AdvisoryEvent.TYPING, "draft", draft_token_ids=draft)
    assert state.action is SessionAction.DRAFT_PREFILL
    served.rest()
    assert served.advise(AdvisoryEvent.QUERY, "draft").tier_tokens == [7 * SIZE, 0, 0]
    assert served.advise(AdvisoryEvent.TYPING, "draft", draft_token_ids=draft).action is SessionAction.PIN
    tokens, num_cached = served.ask([*draft, *served.tokens(3)], session_id="draft")
    assert num_cached == 7 * SIZE
    assert len(tokens) == 4


def test_a_draft_that_no_request_could_have_is_refused(served: VllmServed) -> None:
    served.ask(served.tokens(SIZE), session_id="long")
    for draft in ([1] * 1023, [1, -1]):
        assert served.advise(AdvisoryEvent.TYPING, "long", draft_token_ids=draft).action is SessionAction.REFUSED


def test_a_cancel_ends_what_is_prepared(served: VllmServed) -> None:
    prompt = served.tokens(6 * SIZE)
    served.ask(prompt, session_id="cancel")
    wasted = served.engine.stats().num_wasted_tokens
    served.advise(AdvisoryEvent.TYPING, "cancel", draft_token_ids=[*prompt, *served.tokens(600)])
    served.engine.step()
    assert served.advise(AdvisoryEvent.CANCEL, "cancel").action is SessionAction.RELEASE
    served.rest()
    assert served.engine.stats().num_leases == 0
    served.crowd_out()
    served.advise(AdvisoryEvent.TYPING, "cancel")
    served.rest()
    served.advise(AdvisoryEvent.CANCEL, "cancel")
    assert served.engine.stats().num_wasted_tokens == wasted + 6 * SIZE
    served.rest()


def test_a_lease_ends(served: VllmServed) -> None:
    served.ask(served.tokens(2 * SIZE), session_id="brief")
    assert served.advise(AdvisoryEvent.TYPING, "brief", lease_ms=0.0).action is SessionAction.PIN
    served.engine.step()
    assert served.advise(AdvisoryEvent.QUERY, "brief").lease_ms is None

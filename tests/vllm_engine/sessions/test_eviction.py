"""Whose blocks vLLM evicts first. Needs vLLM: make test-vllm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("vllm")

from fakes.vllm_served import SIZE, VllmServed
from schedcore.api.types import AdvisoryEvent, RequestClass, SessionAction


@pytest.fixture
def bare() -> Iterator[VllmServed]:
    """Without tiers."""
    made = VllmServed()
    try:
        yield made
    finally:
        made.engine.close()


def test_what_is_leased_goes_last(bare: VllmServed) -> None:
    texts = {name: bare.tokens(6 * SIZE) for name in ("leased", "session", "offline")}
    bare.ask(texts["leased"], session_id="leased")
    bare.ask(texts["session"], session_id="session")
    assert bare.advise(AdvisoryEvent.TYPING, "leased", lease_ms=600_000.0).action is SessionAction.PIN
    bare.ask(texts["offline"], request_class=RequestClass.OFFLINE)
    bare.crowd_out(24, "")
    assert bare.ask(texts["offline"])[1] < 6 * SIZE, "though it was the last to be used"
    assert bare.advise(AdvisoryEvent.QUERY, "session").tier_tokens[0] == 6 * SIZE
    bare.crowd_out(40, "")
    assert bare.advise(AdvisoryEvent.QUERY, "session").tier_tokens[0] == 6 * SIZE
    for _ in range(3):  # as many sessions as there is memory
        bare.ask(bare.tokens(16 * SIZE), session_id=str(_))
    assert bare.advise(AdvisoryEvent.QUERY, "session").tier_tokens[0] < 6 * SIZE
    assert bare.advise(AdvisoryEvent.QUERY, "leased").tier_tokens[0] == 6 * SIZE
    bare.ask(bare.tokens(30 * SIZE))
    assert bare.ask(bare.tokens(31 * SIZE))[0], "and no request waits for a lease"
    bare.engine.check_invariants()

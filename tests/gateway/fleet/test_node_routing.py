"""What a gateway does with what it hears of other gateways' sessions."""

from __future__ import annotations

import pytest

from fakes.fake_engine import INFO
from gateway.fleet.node_routing import NodeRouting
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest
from schedcore.api.wire import SessionNote
from schedcore.routing.route import session_digest

NODES = {"a": None, "b": None, "c": None}
NAMES = [f"session {i}" for i in range(20)]


@pytest.fixture
def routing() -> NodeRouting:
    routing = NodeRouting("advised", lambda: 100.0)
    for name in NODES:
        routing.join(name, f"{name}-1", INFO)
    return routing


def request(session: str) -> EngineRequest:
    return EngineRequest(1, [7] * 2000, 4, session_id=session)


def note(session: str, *, is_expected: bool = False) -> SessionNote:
    return SessionNote(session_digest("", "", session), 1990, is_expected)


def node_of(routing: NodeRouting, session: str) -> str:
    found = routing.choose(request(session), NODES)
    assert found is not None
    return found.node


def test_a_session_goes_to_where_another_gateway_sent_it(routing: NodeRouting) -> None:
    for i, session in enumerate(NAMES):
        routing.note_others("abc"[i % 3], [note(session)])
    assert [node_of(routing, session) for session in NAMES] == ["abc"[i % 3] for i in range(len(NAMES))]
    assert routing.num_routed["home"] == len(NAMES)


def test_a_request_goes_to_where_another_gateways_advisory_went(routing: NodeRouting) -> None:
    routing.note_others("b", [note(session, is_expected=True) for session in NAMES])
    assert node_of(routing, NAMES[0]) == "b"
    assert routing.num_routed["advised"] == 1


def test_a_request_that_came_at_another_gateway_is_expected_no_longer(routing: NodeRouting) -> None:
    advisory = Advisory("chat", AdvisoryEvent.TYPING)
    assert routing.choose(advisory, {"a": None}) is not None
    routing.note_others("b", [note("chat")])
    assert routing.holders(advisory) == ["b"]


def test_what_a_former_engine_had_is_forgotten(routing: NodeRouting) -> None:
    routing.note_others("b", [note("chat")])
    routing.join("b", "b-2", INFO)
    assert routing.holders(Advisory("chat", AdvisoryEvent.TYPING)) == []
    routing.note_others("stranger", [note("chat")])
    assert routing.holders(Advisory("chat", AdvisoryEvent.TYPING)) == []


def test_names_that_change_take_the_places_of_those_that_are_forgotten(routing: NodeRouting) -> None:
    for i in range(50):
        name = f"pod-{i}"
        routing.join(name, f"{name}-1", INFO, f"machine {i}")
        routing.note_others(name, [note("chat")])
        found = routing.choose(request("chat"), {name: None})
        assert found is not None
        assert (found.node, found.source) == (name, None)
        routing.forget(name)
        routing.forget(name)
        assert routing.holders(Advisory("chat", AdvisoryEvent.TYPING)) == []
    assert len(routing._names) == len(NODES) + 1
    assert len(routing._machines) + len(routing._free_places) == 2
    found = routing.choose(request("chat"), NODES)
    assert found is not None
    assert found.node in NODES

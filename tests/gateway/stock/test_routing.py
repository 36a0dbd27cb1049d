from __future__ import annotations

from gateway.stock.routing import MAX_REMEMBERED, Routing
from schedcore.api.types import EngineRequest


def request(start: int, session: str = "") -> EngineRequest:
    return EngineRequest(1, [start] * 100, 1, session_id=session)


def test_the_least_busy_one_takes_it() -> None:
    assert Routing().choose(request(1), {"a": 3, "b": 1}) == "b"


def test_a_session_and_a_common_beginning_stay_where_they_are_cached() -> None:
    routing = Routing()
    assert routing.choose(request(1, "s"), {"a": 0, "b": 1}) == "a"
    assert routing.choose(request(2, "s"), {"a": 2, "b": 0}) == "a"
    assert routing.choose(request(3), {"a": 1, "b": 0}) == "b"
    assert routing.choose(request(3), {"a": 0, "b": 2}) == "b"


def test_a_home_that_is_much_busier_or_gone_is_left() -> None:
    routing = Routing()
    assert routing.choose(request(1), {"a": 0, "b": 1}) == "a"
    assert routing.choose(request(1), {"a": 30, "b": 1}) == "b"
    assert routing.choose(request(1), {"a": 0}) == "a"
    assert routing.choose(request(1), {}) is None


def test_what_is_remembered_is_bounded() -> None:
    routing = Routing()
    for i in range(MAX_REMEMBERED + 10):
        routing.choose(EngineRequest(1, [i], 1), {"a": 0})
    assert len(routing._homes) == MAX_REMEMBERED

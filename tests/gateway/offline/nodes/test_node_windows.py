"""How much each node is given: what its engine's gauges say decides."""

from __future__ import annotations

import msgspec

from fakes.fake_engine import FakeSteps
from gateway.offline.nodes.node_windows import FIRST, LEAST, NodeWindows
from schedcore.api.types import EngineStats, RequestClass

MOST, MOST_TOKENS = 64, 1000


def said(num_running: int, num_waiting: int) -> EngineStats:
    running, waiting = [0] * len(RequestClass), [0] * len(RequestClass)
    running[RequestClass.OFFLINE], waiting[RequestClass.OFFLINE] = num_running, num_waiting
    return msgspec.structs.replace(FakeSteps().stats(), num_running=running, num_waiting=waiting)


def filled(windows: NodeWindows, now: float) -> dict[str, int]:
    """Rows that go to each, until there is no room."""
    found = dict.fromkeys(windows.names, 0)
    while (window := windows.next(now)) is not None:
        assert window.name is not None
        window.start(1)
        found[window.name] += 1
    return found


def test_of_one_node_nothing_is_counted() -> None:
    windows = NodeWindows(MOST, MOST_TOKENS)
    assert not windows.look({"a": said(1, 0)}, 1.0)
    window = windows.next(1.0)
    assert window is not None
    assert window.name is None
    for _ in range(1000):
        window.start(1000)
    assert windows.next(1.0) is window


def test_a_window_grows_while_nothing_waits_and_falls_when_too_much_does() -> None:
    windows = NodeWindows(MOST, MOST_TOKENS)
    assert windows.look({"fast": None, "slow": None}, 0.0)
    assert filled(windows, 0.0) == {"fast": FIRST, "slow": FIRST}
    assert not windows.look({"fast": said(FIRST, 0), "slow": said(2, FIRST - 2)}, 0.25)
    assert filled(windows, 0.25) == {"fast": FIRST, "slow": 0}
    windows.look({"fast": said(2 * FIRST, 0), "slow": said(2, FIRST - 2)}, 0.5)
    windows.look({"fast": said(4 * FIRST, 0), "slow": said(2, FIRST - 2)}, 0.75)
    assert filled(windows, 0.75) == {"fast": 2 * FIRST, "slow": 0}  # MOST, together
    sizes = {}
    for now in range(1, 20):
        windows.look({"fast": said(64, 0), "slow": said(0, FIRST)}, float(now))
        sizes = {window.name: window.size for window in windows._windows.values()}
    assert sizes["fast"] == MOST
    assert sizes["slow"] < FIRST
    assert sizes["slow"] >= LEAST


def test_the_same_word_of_an_engine_counts_once() -> None:
    windows = NodeWindows(MOST, MOST_TOKENS)
    stats = {"a": said(FIRST, 0), "b": said(FIRST, 0)}
    windows.look(stats, 0.0)
    filled(windows, 0.0)
    windows.look(stats, 0.1)
    first = filled(windows, 0.1)
    windows.look(stats, 0.2)
    assert first == {"a": FIRST, "b": FIRST}
    assert filled(windows, 0.2) == {"a": 0, "b": 0}


def test_who_comes_has_room_at_once_and_who_refused_waits() -> None:
    windows = NodeWindows(MOST, MOST_TOKENS)
    windows.look({"a": None, "b": None}, 0.0)
    filled(windows, 0.0)
    assert not windows.has_idle(0.0)
    assert windows.look({"a": None, "b": None, "c": None}, 0.1)
    assert windows.has_idle(0.1)
    window = windows.next(0.1)
    assert window is not None
    assert window.name == "c"
    window.paused_until = 0.5
    assert windows.next(0.2) is None
    assert not windows.has_idle(0.2)
    assert windows.next(0.5) is window


def test_long_prompts_fill_a_window_and_one_may_always_go() -> None:
    windows = NodeWindows(MOST, MOST_TOKENS)
    windows.look({"a": None, "b": None}, 0.0)
    for _ in range(2):
        window = windows.next(0.0)
        assert window is not None
        window.start(5000)
    assert windows.next(0.0) is None

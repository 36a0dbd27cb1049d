"""tools/compare_checkouts.py: what it takes for equal, and that it asks every route."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from gateway.routes import routes

ROOT = Path(__file__).resolve().parents[2]
JSON, EVENTS = "application/json; charset=utf-8", "text/event-stream"


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("compare_checkouts", ROOT / "tools/compare_checkouts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_route_is_asked(tool: ModuleType) -> None:
    asked = {(one.method, one.path.partition("?")[0]) for served in tool.SERVERS for one in served.asked}
    asked.add(("GET", "/metrics"))  # of each server, when it has answered all else
    for route in routes():
        path = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", route.path))
        assert any(method == route.method and path.fullmatch(one) for method, one in asked), route


def test_names_say_which_request_it_was(tool: ModuleType) -> None:
    for served in tool.SERVERS:
        names = [asked.name for asked in served.asked]
        assert len(names) == len(set(names))
    assert sum(len(served.asked) for served in tool.SERVERS) > 60


def test_times_are_equal_and_counts_are_not(tool: ModuleType) -> None:
    def body(created: float, count: int) -> str:
        return tool.comparable(json.dumps({"created": created, "count": count, "ok": True}).encode(), JSON)

    now = time.time()
    assert body(int(now), 3) == body(now - 60.5, 3)
    assert body(now, 3) != body(now, 4)
    assert body(0, 3) != body(now, 3)


def test_rows_are_compared_by_their_ids(tool: ModuleType) -> None:
    def body(*rows: tuple[str, str]) -> str:
        return tool.comparable(json.dumps({"data": [{"custom_id": i, "text": t} for i, t in rows]}).encode(), JSON)

    assert body(("a", "1"), ("b", "2")) == body(("b", "2"), ("a", "1"))
    assert body(("a", "1"), ("b", "2")) != body(("a", "2"), ("b", "1"))


def events(*texts: str, end: str = "length") -> bytes:
    pieces = [{"index": 0, "delta": {"content": text}, "finish_reason": None} for text in texts]
    last = {"index": 0, "delta": {}, "finish_reason": end}
    chunks = [{"id": "c", "choices": [piece], "usage": {"n": i}} for i, piece in enumerate([*pieces, last])]
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"


def test_streams_are_equal_however_many_tokens_an_event_holds(tool: ModuleType) -> None:
    def shown(body: bytes) -> str:
        return tool.comparable(body, EVENTS)

    assert shown(events("Once ", "upon")) == shown(events("On", "ce up", "on"))
    assert shown(events("Once ", "upon")) != shown(events("Once ", "Upon"))
    assert shown(events("Once")) != shown(events("Once", end="stop"))
    assert shown(events("Once")) != shown(events("Once")[: -len(b"data: [DONE]\n\n")])


def test_metrics_are_names_kinds_and_labels(tool: ModuleType) -> None:
    page = '# HELP a of it\n# TYPE a counter\na_total{x="1"} 5.0\na_created{x="1"} 1.7e9\n'
    assert set(tool.families(page)) == {"# HELP a of it", "# TYPE a counter", 'a_total{x="1"}'}


def test_differences_name_what_was_asked(tool: ModuleType) -> None:
    found = list(tool.differences({"a": "1\n2", "b": "same"}, {"a": "1\n3", "b": "same", "c": "new"}))
    assert [text.splitlines()[0] for text in found] == ["=== a", "=== c"]
    assert "-2\n+3" in found[0]

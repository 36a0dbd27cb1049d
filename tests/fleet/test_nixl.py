"""Nodes that are told to pull over NIXL, all real (`make test-nixl`): cache moves as between others.

What goes by windows is in tests/schedcore/peers/test_windows.py: here the first pull, over TCP, opens them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.eventually import wait_until
from fakes.real_fleet import RealFleet, RealNode, fleet
from schedcore.peers.nixl_window import has_nixl
from tests.fleet import test_moving as moving

pytestmark = pytest.mark.skipif(not has_nixl(), reason="NIXL is not installed here: make test-nixl")
SECONDS = 60.0


@pytest.fixture
def running(tmp_path: Path, cluster_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RealFleet]:
    add = RealFleet.add

    def add_with_nixl(running: RealFleet, name: str) -> RealNode:
        return add(running, name, "--block-transport", "nixl")

    monkeypatch.setattr(RealFleet, "add", add_with_nixl)
    with fleet(tmp_path, cluster_dir, *moving.ROUTING) as running:
        running.add("a")
        running.wait_for("a", "up")
        yield running


def test_an_advised_conversation_moves_between_nodes_with_nixl(running: RealFleet) -> None:
    moving.test_an_advised_conversation_moves_to_an_idle_node(running)
    logs = [running.folder / name / "engine.log" for name in "ab"]
    wait_until(lambda: all("blocks go over NIXL" in log.read_text() for log in logs), SECONDS)
    assert not any("come over TCP" in log.read_text() for log in logs)

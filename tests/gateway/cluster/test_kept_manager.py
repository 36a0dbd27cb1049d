"""A real `hocket node`, for a gateway that is not there: it is kept running all the same."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fakes.eventually import wait_until
from fakes.real_fleet import free_port
from gateway.cluster.fleet_file import FleetFile
from gateway.cluster.kept_manager import KeptManager
from gateway.cluster.plan import FleetPlan, Keeping

SECONDS = 60.0


@pytest.fixture
def plan(tmp_path: Path) -> Iterator[FleetPlan]:
    node: dict[str, bool | int | float | str | list[str]] = {"dtype": "float32", "drain-timeout-ms": 100}
    yield FleetPlan(FleetFile(gateways=(f"127.0.0.1:{free_port()}",), run_dir=str(tmp_path), node=node), 1, 1)
    for process in psutil.process_iter(["cmdline"]):
        if any(str(tmp_path) in argument for argument in process.info["cmdline"] or ()):
            process.kill()


def test_it_is_started_again_adopted_by_the_next_and_drained(plan: FleetPlan, tmp_path: Path) -> None:
    kept = KeptManager("n", plan, "m", None)
    wait_until(lambda: kept.report().is_ready, SECONDS)
    first = kept.report()
    assert (first.keeping, first.machine, first.is_adopted) == (Keeping.RUNNING, "m", False)
    os.kill(first.pid, signal.SIGKILL)
    wait_until(lambda: kept.report().num_restarts == 1 and kept.report().pid not in (0, first.pid), SECONDS)
    assert "node.log" in kept.report().last_exit
    assert kept.report().engine_pid == first.engine_pid

    second = kept.report().pid
    log = tmp_path / "m" / "n" / "node.log"
    wait_until(lambda: "adopting the engine" in log.read_text(), SECONDS)  # it knows by now what SIGHUP means
    later = FleetPlan(plan.file, 5, 2)
    taker = KeptManager("n", plan, "m", None)  # as after the death of whoever kept it
    wait_until(lambda: taker.report(later).pid != 0 and taker.report().is_adopted, SECONDS)
    wait_until(lambda: kept.report().keeping is Keeping.LEFT, SECONDS)
    assert not psutil.pid_exists(second)
    assert taker.report().engine_pid == first.engine_pid
    assert taker.report(plan).plan == later  # what came later is remembered

    taker.drain()
    assert taker.report().keeping in (Keeping.DRAINING, Keeping.ENDED)
    wait_until(lambda: taker.report().keeping is Keeping.ENDED, SECONDS)
    wait_until(lambda: not psutil.pid_exists(first.engine_pid), SECONDS)


def test_one_that_cannot_start_is_tried_again_and_says_where_its_log_is(plan: FleetPlan, tmp_path: Path) -> None:
    broken = FleetPlan(FleetFile(gateways=plan.file.gateways, run_dir=str(tmp_path), model="/nowhere"), 1, 1)
    kept = KeptManager("n", broken, "m", None)
    wait_until(lambda: kept.report().num_restarts >= 2, SECONDS)
    assert "status 1" in kept.report().last_exit
    assert "/nowhere" in (tmp_path / "m" / "n" / "node.log").read_text()
    kept.drain()
    wait_until(lambda: kept.report().keeping is Keeping.ENDED, SECONDS)

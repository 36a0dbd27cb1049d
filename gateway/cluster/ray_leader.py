"""The Ray actor that sees to it that a fleet is what it shall be. There is one, for there is one of its name.

It remembers nothing that its nodes do not: started again, it learns the plan from them. While it is gone nothing is
changed, and everything serves on.
"""

from __future__ import annotations

import logging
import threading
import time
import urllib.request
from typing import Any

import msgspec

from gateway.cluster.fleet_file import FleetFile
from gateway.cluster.plan import DrainStep, FleetPlan, FleetReport, NodeReport, Remove, Start, next_steps
from gateway.cluster.ray_nodes import RayNodes, ask_for_machines
from gateway.cluster.scaler import Scaler, most_desired, within

TICK_SECONDS = 0.5
SCALING_SECONDS = 10.0
START_SECONDS = 10.0  # before a node that cannot be started is tried again
_SCRAPE_SECONDS = 5.0

_log = logging.getLogger("hocket.fleet")


class RayLeader:
    def __init__(self, plan: bytes) -> None:
        self._plan = msgspec.json.decode(plan, type=FleetPlan)
        self._nodes = RayNodes(self._plan.file.name)
        self._seen: dict[str, NodeReport | None] = {}
        self._started: dict[str, float] = {}  # when a node was last started
        self._asked_for: tuple[int, str] | None = None
        self._scaler: Scaler | None = None
        self._scaled_at = 0.0
        self._problem = ""
        self._lock = threading.Lock()
        threading.Thread(target=self._lead, name="lead", daemon=True).start()

    def change(self, file: bytes) -> None:
        """file: a FleetFile."""
        decoded = msgspec.json.decode(file, type=FleetFile)
        with self._lock:
            self._scaler = None
            number, now = decoded.nodes, self._plan.num_nodes
            if decoded.scaling is not None and now > 0:  # what its gateway asks for stays
                number = within(decoded.scaling, now)
            self._plan = FleetPlan(decoded, number, self._plan.generation + 1)

    def scale(self, num_nodes: int) -> None:
        """0: all nodes end."""
        with self._lock:
            self._set_number(num_nodes)

    def report(self) -> bytes:
        """A FleetReport."""
        with self._lock:
            return msgspec.json.encode(FleetReport(self._plan, self._seen, self._problem))

    def _set_number(self, num_nodes: int) -> None:
        self._plan = FleetPlan(self._plan.file, num_nodes, self._plan.generation + 1)

    # ---- its thread ----

    def _lead(self) -> None:
        while True:
            try:
                self._tick()
            except Exception as error:  # Ray's head may be gone for a while, and comes back
                self._problem = f"{type(error).__name__}: {error}"
                _log.warning("the fleet cannot be seen to now: %s", self._problem)
            time.sleep(TICK_SECONDS)

    def _tick(self) -> None:
        seen = self._nodes.seen(self._plan)
        with self._lock:
            self._seen = seen
            self._recall(seen)
            plan = self._plan
        self._problem = ""
        self._ask_for_machines(plan)
        for step in next_steps(plan, seen):
            self._take(step, plan)
        self._scale_by_gauge(plan)

    def _recall(self, seen: dict[str, NodeReport | None]) -> None:
        """What the leader before this one knew."""
        plans = [report.plan for report in seen.values() if report is not None and report.plan is not None]
        self._plan = max((self._plan, *plans), key=lambda plan: plan.generation)

    def _ask_for_machines(self, plan: FleetPlan) -> None:
        wanted = (plan.num_nodes, plan.digest)
        if wanted != self._asked_for:
            ask_for_machines(plan)
            self._asked_for = wanted

    def _take(self, step: Start | DrainStep | Remove, plan: FleetPlan) -> None:
        now = time.monotonic()
        match step:
            case Start(name):
                if now - self._started.get(name, -START_SECONDS) >= START_SECONDS:
                    self._started[name] = now
                    self._nodes.start(name, plan)
                else:
                    self._problem = f"{name} could not be started: `ray list actors --detail` says why"
            case DrainStep(name):
                self._nodes.drain(name)
            case Remove(name):
                self._nodes.remove(name)
                self._started.pop(name, None)

    def _scale_by_gauge(self, plan: FleetPlan) -> None:
        scaling, now = plan.file.scaling, time.monotonic()
        if scaling is None or plan.num_nodes == 0 or now - self._scaled_at < SCALING_SECONDS:
            return
        self._scaled_at = now
        self._scaler = self._scaler or Scaler(scaling)
        try:
            desired = most_desired(scaling.metrics_urls, _scrape)
        except ValueError as error:
            self._problem = str(error)
            return
        number = self._scaler.next(now, plan.num_nodes, desired)
        with self._lock:
            if number != plan.num_nodes and self._plan is plan:
                self._set_number(number)


def _scrape(url: str) -> str:
    """Raises OSError."""
    with urllib.request.urlopen(url, timeout=_SCRAPE_SECONDS) as answer:
        content: Any = answer.read()
        return str(content, "utf-8", "replace")

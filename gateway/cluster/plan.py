"""What a fleet shall be, what it is, and what is to be done next. Pure: who starts and ends nodes asks it.

It is asked again and again, so it never waits: a step whose end is not seen yet is not taken twice.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Iterator, Mapping

import msgspec

from gateway.cluster.fleet_file import FleetFile


class FleetPlan(msgspec.Struct, frozen=True):
    file: FleetFile
    num_nodes: int
    generation: int = 0  # grows with every change: of two the later one holds

    @property
    def digest(self) -> str:
        """Of what a node is started with: one that has another is replaced."""
        content = msgspec.json.encode([self.file.node_arguments(), self.file.run_dir, self.file.resources])
        return hashlib.blake2b(content, digest_size=8).hexdigest()

    @property
    def names(self) -> list[str]:
        return [f"{self.file.name}-{i + 1}" for i in range(self.num_nodes)]


class Keeping(enum.StrEnum):
    """What is with a node manager that is kept running."""

    RUNNING = "running"
    DRAINING = "draining"  # for good, by order of who keeps it
    ENDED = "ended"  # after that
    LEFT = "left"  # by an operator's `hocket fleet drain`, or since another node has its name


class NodeReport(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    digest: str  # of the plan that it was started by
    generation: int  # of that plan
    keeping: Keeping
    machine: str = ""
    pid: int = 0  # of its node manager
    num_restarts: int = 0  # of its node manager
    last_exit: str = ""  # of a node manager that ended by itself
    engine_pid: int = 0
    is_ready: bool = False  # its engine is
    is_adopted: bool = False  # the engine was there before this node manager
    plan: FleetPlan | None = None  # the latest that it has been told


class FleetReport(msgspec.Struct, frozen=True):
    plan: FleetPlan
    nodes: dict[str, NodeReport | None]  # by name; None: being placed or started again
    problem: str = ""  # the last one that is not over


class Start(msgspec.Struct, frozen=True):
    name: str


class DrainStep(msgspec.Struct, frozen=True):
    name: str


class Remove(msgspec.Struct, frozen=True):
    name: str


Step = Start | DrainStep | Remove


def next_steps(plan: FleetPlan, seen: Mapping[str, NodeReport | None]) -> list[Step]:
    """seen: all that exist; None: one that does not answer now. That one is being started again, or soon will be."""
    return [*_of_existing(plan, seen), *_of_replacing(plan, seen), *_of_missing(plan, seen)]


def _of_existing(plan: FleetPlan, seen: Mapping[str, NodeReport | None]) -> Iterator[Step]:
    for name, report in seen.items():
        if report is None:
            continue
        if report.keeping is Keeping.ENDED or (report.keeping is Keeping.LEFT and report.generation < plan.generation):
            yield Remove(name)
        elif report.keeping is Keeping.RUNNING and name not in plan.names:
            yield DrainStep(name)


def _of_missing(plan: FleetPlan, seen: Mapping[str, NodeReport | None]) -> Iterator[Step]:
    yield from (Start(name) for name in plan.names if name not in seen)


def _of_replacing(plan: FleetPlan, seen: Mapping[str, NodeReport | None]) -> Iterator[Step]:
    """Who serves, one at a time, and only while all others do. Who serves nobody, at once."""
    reports = [report for name in plan.names if (report := seen.get(name)) is not None]
    old = [report for report in reports if report.digest != plan.digest and report.keeping is Keeping.RUNNING]
    yield from (DrainStep(report.name) for report in old if not report.is_ready)
    is_whole = len(reports) == plan.num_nodes and all(
        report.keeping is Keeping.LEFT or (report.keeping is Keeping.RUNNING and report.is_ready) for report in reports
    )
    if old and is_whole:
        yield DrainStep(old[0].name)

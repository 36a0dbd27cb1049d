"""Leak equations: a gateway with nothing open holds nothing, and one that is closed leaves the process as it found it.

Every count is read from the object that is responsible for it.
"""

from __future__ import annotations

import asyncio
import gc
import math
from pathlib import Path
from typing import Any

from fakes.eventually import eventually
from gateway.advisories.advisor import Advisor
from gateway.model.work_pool import WorkPool
from gateway.offline.store.store import OfflineStore
from gateway.services import Services


class LeakCheck:
    """From before a gateway is made until after it was closed. Belongs to one event loop, whose callbacks may not fail.

    `make` it on that loop; `watch` what is made; `assert_closed` when all of it was closed.
    """

    def __init__(self) -> None:
        self._watched: list[Services] = []
        self._failures: list[str] = []  # of callbacks, and of tasks that nobody asked
        self._tasks = asyncio.all_tasks()
        self._descriptors = _descriptors()
        asyncio.get_running_loop().set_exception_handler(self._note)

    def watch(self, services: Services) -> Services:
        self._watched.append(services)
        return services

    async def assert_closed(self) -> None:
        for services in self._watched:
            await assert_nothing_is_open(services)
            assert not _lasting(services), _lasting(services)
        await _none(self._tasks_left, "tasks")
        gc.collect(0)  # tells of tasks whose failure nobody has asked for
        assert not self._failures, f"callbacks or forgotten tasks have failed: {self._failures}"
        await _none(self._descriptors_left, "descriptors")

    def _note(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._failures.append(f"{context.get('message')}: {context.get('exception')!r}")

    def _tasks_left(self) -> list[str]:
        return [repr(task) for task in asyncio.all_tasks() - self._tasks if task is not asyncio.current_task()]

    def _descriptors_left(self) -> list[str]:
        left = [f"{number}: {name}" for number, name in _descriptors().items() if self._descriptors.get(number) != name]
        if left:
            gc.collect()  # what is garbage is no leak
        return left


async def assert_nothing_is_open(services: Services) -> None:
    """REQUIRES: every answer has been read, or its client is gone. The gateway may take a moment to notice."""
    await _none(lambda: [f"{name}: {number}" for name, number in _open(services).items() if number], "held")


def _open(services: Services) -> dict[str, int]:
    """What belongs to requests."""
    engine: Any = services.serving.engine
    held = {"generations": len(services.serving.open)}
    for request_class, admission in services.serving.admissions.items():
        held[f"{request_class.name} requests admitted"] = admission.num_requests
        held[f"{request_class.name} tokens admitted"] = admission.num_tokens
    held["streams of the engine's client"] = engine._router.num_open
    held["requests that may go on"] = services.serving.resumption.num_open
    held["advisories without an answer"] = len(getattr(engine, "_answers", ()))
    held["requests in the engine"] = getattr(engine, "num_open", 0)
    held |= _open_work(services.model.tokenizer.pool) | _unbalanced_leases(services.serving.advisor)
    return held | (_open_files(services.offline) if services.offline is not None else {})


def _open_work(pool: WorkPool) -> dict[str, int]:
    return {
        "jobs of the pool": pool.num_jobs,
        "steps of the pool": sum(pool._num_running.values()),
        "tenants in the pool": len(pool._small.tenants) + len(pool._large.tenants),
    }


def _unbalanced_leases(advisor: Advisor) -> dict[str, int]:
    """Leases outlast requests; each is counted once, and will end."""
    table = advisor._sessions
    ending = {id(each) for _, _, each in table._by_expiry}
    held = {"leases without an end": 0, "bytes of leases too many": 0}
    for tenant in table._tenants.values():
        announcements = [
            session.announcement for session in tenant.sessions.values() if session.announcement is not None
        ]
        held["leases without an end"] += sum(id(each) not in ending for each in announcements)
        held["bytes of leases too many"] += abs(tenant.num_lease_bytes - sum(each.num_bytes for each in announcements))
    return held


def _open_files(store: OfflineStore) -> dict[str, int]:
    return {
        "bytes of uploads": sum(store._accounts._uploads.values()),
        "changes of the store": len(store._threads._tasks),
        "batches that end": len(store._finalizing),
        "results without a commit": len(store._commits._waiting),
    }


def _lasting(services: Services) -> list[str]:
    """What outlasts requests, not the gateway: leases end with time, supervised tasks with their owners."""
    services.serving.advisor.sweep(math.inf)
    table = services.serving.advisor._sessions
    leases = [f"{tenant}: {table.num_lease_bytes(tenant)} bytes of leases" for tenant in table._tenants]
    return [lease for lease in leases if ": 0 " not in lease] + [task.name for task in services.supervisor]


async def _none(left: Any, what: str) -> None:
    try:
        await eventually(lambda: not left(), seconds=5.0)
    except AssertionError:
        raise AssertionError(f"{what} left: {left()}") from None


def _descriptors() -> dict[int, str]:
    """Open descriptors of this process and what they are of. A new socket under an old number is another one."""
    found = {}
    for link in Path("/proc/self/fd").iterdir():
        try:
            found[int(link.name)] = str(link.readlink())
        except FileNotFoundError:  # of the listing itself
            continue
    return found

"""One of several gateways leads, over a real PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import create_engine, text

from fakes.eventually import eventually, wait_until
from fakes.manual_clock import ManualClock
from gateway.offline.database import leader_lock
from gateway.offline.database.database import database_url
from gateway.offline.database.leader_lock import SURE_SECONDS, LeaderLock

type_of_open = Callable[..., LeaderLock]


@pytest.fixture
def open_lock(postgresql_url: str) -> Iterator[type_of_open]:
    with ExitStack() as stack:

        def make(name: str, clock: ManualClock | None = None) -> LeaderLock:
            lock = LeaderLock(database_url(postgresql_url), name, clock or ManualClock())
            stack.callback(lock._resign)
            return lock

        yield make


def end_sessions(url: str, name: str) -> None:
    """As the server does with those of a gateway that is gone."""
    engine = create_engine(url)
    with engine.begin() as connection:
        ending = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name")
        assert connection.execute(ending, {"name": name}).all() == [(True,)]
    engine.dispose()


def test_one_leads_and_the_others_know_who(open_lock: type_of_open) -> None:
    one, two, three = locks = [open_lock(name) for name in ("one", "two", "three")]
    assert [lock.leader for lock in locks] == ["", "", ""]
    for lock in (two, one, three, two):
        lock._turn()
    assert [lock.is_leader for lock in locks] == [False, True, False]
    assert [lock.leader for lock in locks] == ["two"] * 3
    two._resign()
    assert not two.is_leader

    def three_leads() -> bool:  # the server frees the lock when it gets to it
        three._turn()
        return three.is_leader

    wait_until(three_leads, 30.0)
    one._turn()
    assert [lock.leader for lock in (one, three)] == ["three", "three"]


def test_a_leader_whose_session_is_over_leads_no_longer_and_comes_last(
    open_lock: type_of_open, postgresql_url: str
) -> None:
    one, two = open_lock("one"), open_lock("two")
    one._turn()
    two._turn()
    end_sessions(postgresql_url, "one")

    def two_leads() -> bool:  # the server ends it when it gets to it
        two._turn()
        return two.is_leader

    wait_until(two_leads, 30.0)
    one._turn()
    assert (one.is_leader, one.leader) == (False, "")
    one._turn()
    assert (one.is_leader, one.leader) == (False, "two")


def test_a_leader_that_is_stopped_is_unsure_before_another_leads(
    open_lock: type_of_open, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leader_lock.IDLE_SECONDS > SURE_SECONDS
    monkeypatch.setattr(leader_lock, "IDLE_SECONDS", 1)
    clock = ManualClock()
    one, two = open_lock("one", clock), open_lock("two")
    one._turn()
    clock.advance(SURE_SECONDS - 0.1)
    assert one.is_leader
    clock.advance(0.2)
    assert not one.is_leader

    def two_leads() -> bool:  # the server has ended the session of one, which asks nothing
        two._turn()
        return two.is_leader

    wait_until(two_leads, 30.0)


def test_without_the_database_nobody_leads(open_lock: type_of_open) -> None:
    nowhere = database_url("postgresql://nobody@/nothing?host=/nonexistent")
    lock = LeaderLock(nowhere, "one", ManualClock())
    lock._turn()
    assert (lock.is_leader, lock.leader) == (False, "")


async def test_who_is_elected_is_told_once(open_lock: type_of_open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_lock, "TURN_SECONDS", 0.01)
    elected: list[str] = []
    one, two = open_lock("one"), open_lock("two")
    first = asyncio.create_task(one.keep(lambda: elected.append("one")))
    await eventually(lambda: one.is_leader)
    second = asyncio.create_task(two.keep(lambda: elected.append("two")))
    await eventually(lambda: two.leader == "one")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await eventually(lambda: elected == ["one", "two"])
    assert two.is_leader
    assert not one.is_leader
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)

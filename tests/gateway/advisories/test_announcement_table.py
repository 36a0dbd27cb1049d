from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.advisories.announcement_table import Announcement, AnnouncementTable, SessionKey


def key(tenant: str, name: str) -> SessionKey:
    return SessionKey(tenant, "", name)


def announce(table: AnnouncementTable, of: SessionKey, since: float, expires_at: float, num_bytes: int = 1) -> None:
    table.announce(table.get(of), Announcement(of, since, expires_at, num_tokens=1, num_bytes=num_bytes))


def test_the_least_recently_used_session_of_the_same_tenant_makes_room() -> None:
    table = AnnouncementTable(max_sessions=2)
    other = table.get(key("b", "x"))
    first = table.get(key("a", "1"))
    table.get(key("a", "2"))
    table.get(key("a", "1"))
    for i in range(3, 100):
        table.get(key("a", str(i)))
        table.get(key("a", "1"))
    assert table.find(key("a", "1")) is first
    assert table.find(key("a", "2")) is None
    assert table.find(key("b", "x")) is other


def test_a_lease_that_ends_is_reported_once() -> None:
    table = AnnouncementTable(10)
    announce(table, key("a", "1"), 0.0, 5.0, num_bytes=7)
    assert table.num_lease_bytes("a") == 7
    assert list(table.expire(4.9)) == []
    assert [announcement.num_bytes for announcement in table.expire(5.0)] == [7]
    assert list(table.expire(9.0)) == []
    assert table.num_lease_bytes("a") == 0


def test_a_renewed_lease_keeps_the_first_moment_and_the_last_end() -> None:
    table = AnnouncementTable(10)
    announce(table, key("a", "1"), 0.0, 5.0)
    announce(table, key("a", "1"), 3.0, 8.0)
    assert list(table.expire(7.0)) == []
    announcement = table.withdraw(table.get(key("a", "1")))
    assert announcement is not None
    assert announcement.since == 0.0
    assert list(table.expire(9.0)) == []


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.sampled_from("ngwx"), st.integers(0, 100))))
def test_lease_bytes_are_the_sum_over_what_is_announced(steps: list[tuple[str, int, str, int]]) -> None:
    table = AnnouncementTable(max_sessions=3)
    for now, (tenant, name, step, num) in enumerate(steps):
        of = key(tenant, str(name))
        if step == "n":
            announce(table, of, now, now + num / 10, num)
        elif step == "w":
            table.withdraw(table.get(of))
        elif step == "x":
            list(table.expire(now))
        else:
            table.get(of)
        for each in "ab":
            sessions = [table.find(key(each, str(i))) for i in range(6)]
            live = [session for session in sessions if session is not None]
            assert len(live) <= 3
            assert table.num_lease_bytes(each) == sum(s.announcement.num_bytes for s in live if s.announcement)

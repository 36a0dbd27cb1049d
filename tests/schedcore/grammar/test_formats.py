"""Patterns of formats, against the calendar."""

from __future__ import annotations

import datetime
import re

import pytest

from schedcore.grammar.formats import PATTERNS


def matches(name: str, text: str) -> bool:
    return re.fullmatch(PATTERNS[name], text) is not None


def test_dates_are_those_of_the_calendar() -> None:
    day, last = datetime.date(1895, 1, 1), datetime.date(2005, 1, 1)
    while day < last:
        assert matches("date", day.isoformat()), day
        day += datetime.timedelta(days=1)
    for year in (1, 4, 100, 400, 1900, 2000, 2023, 2024, 9999):
        is_leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        assert matches("date", f"{year:04}-02-29") == is_leap
    for text in ("0000-01-01", "0000-02-29", "2024-00-10", "2024-13-01", "2024-04-31", "2024-02-30", "2024-01-00"):
        assert not matches("date", text)


@pytest.mark.parametrize("text", ["00:00:00Z", "23:59:59.5+14:00", "12:30:00.123456789-00:30"])
def test_times(text: str) -> None:
    assert matches("time", text)
    assert matches("date-time", f"2024-02-29T{text}")


@pytest.mark.parametrize("text", ["24:00:00Z", "12:60:00Z", "12:00:60Z", "12:00:00", "12:00Z", "12:00:00.Z"])
def test_what_is_no_time(text: str) -> None:
    assert not matches("time", text)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("email", "a.b+c@mail.example.org", "a..b@example.org"),
        ("email", "a@b", "a@-b.org"),
        ("json-pointer", "/a/0/b", "a"),
        ("json-pointer", "", "#/a"),
        ("relative-json-pointer", "1/a", "01/a"),
        ("relative-json-pointer", "0#", "-1"),
        ("uri-reference", "a/b?c#d", "a b"),
        ("uri-reference", "https://example.org/a", "<a>"),
        ("iri", "https://example.org/a", "example.org"),
        ("idn-hostname", "a.example.org", "a..org"),
    ],
)
def test_what_a_format_is(name: str, good: str, bad: str) -> None:
    assert matches(name, good)
    assert not matches(name, bad)

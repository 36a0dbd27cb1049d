from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from hocket._streams.sse import ServerSentEvent, SSEDecoder


def decode(*chunks: bytes) -> list[ServerSentEvent]:
    decoder = SSEDecoder()
    return [event for chunk in chunks for event in decoder.feed(chunk)]


def data(*chunks: bytes) -> list[str]:
    return [event.data for event in decode(*chunks)]


def test_an_event_ends_with_a_blank_line() -> None:
    assert data(b"data: one\n\ndata: two\n\n") == ["one", "two"]


def test_all_three_line_ends_work() -> None:
    assert data(b"data: a\r\n\r\ndata: b\r\rdata: c\n\n") == ["a", "b", "c"]


def test_crlf_split_between_its_two_bytes_is_one_line_end() -> None:
    assert data(b"data: a\r", b"\ndata: b\r", b"\n\r", b"\n") == ["a\nb"]


def test_cr_alone_does_not_wait_for_what_follows() -> None:
    assert data(b"data: a\r\r") == ["a"]


def test_an_empty_read_between_cr_and_lf_changes_nothing() -> None:
    assert data(b"data: a\r", b"", b"\ndata: b\n\n") == ["a\nb"]


def test_several_data_lines_are_joined() -> None:
    assert data(b"data: {\ndata:  1}\ndata:\n\n") == ["{\n 1}\n"]


def test_only_one_space_after_the_colon_is_dropped() -> None:
    assert data(b"data:a\n\ndata:  b\n\n") == ["a", " b"]


def test_comments_and_unknown_fields_are_ignored() -> None:
    assert data(b": keep-alive\n\nretry: 10\nfoo: bar\nfoo\ndata: a\n: again\n\n") == ["a"]


def test_a_field_without_a_colon_has_an_empty_value() -> None:
    assert data(b"data\n\n") == [""]


def test_an_event_without_data_is_dropped_and_its_name_forgotten() -> None:
    assert decode(b"event: error\n\ndata: a\n\n") == [ServerSentEvent("a")]


def test_name_and_id_are_kept() -> None:
    assert decode(b"event: error\nid: 7\ndata: a\n\n") == [ServerSentEvent("a", "error", "7")]


def test_an_event_that_is_not_ended_is_not_delivered() -> None:
    assert data(b"data: a\n\ndata: b\n") == ["a"]


def test_byte_order_mark_is_skipped_only_at_the_start() -> None:
    assert data("\ufeffdata: a\n\n\ufeffdata: b\n\n".encode()) == ["a"]


def test_unicode_line_separators_are_text() -> None:
    assert data("data: a\u2028b\u0085c\n\n".encode()) == ["a\u2028b\u0085c"]


def test_broken_utf8_is_replaced_and_does_not_stop_the_stream() -> None:
    assert data(b"data: a\xffb\n\ndata: c\n\n") == ["a\ufffdb", "c"]


STREAM = "event: x\r\ndata: héllo 🦉\r\n\r\n: c\n\ndata: 1\rdata: 2\r\rid: ü\ndata: 漢字\n\ndata:\n\n".encode()


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_the_events_do_not_depend_on_where_the_bytes_are_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert decode(*(STREAM[a:b] for a, b in itertools.pairwise(edges))) == decode(STREAM)

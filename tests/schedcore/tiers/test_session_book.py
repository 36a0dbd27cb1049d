"""The session book: written behind, bounded while it waits, and no failure of a disk reaches whoever writes."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from fakes.eventually import wait_until
from schedcore.tiers import session_book
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import Int32, SessionFiles, SessionName


class GatedFiles(SessionFiles):
    """A disk that takes its time: every write waits until the gate is open."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "model", 10_000, 1 << 30)
        self.gate, self.has_begun = threading.Event(), threading.Event()

    def write(self, name: SessionName, token_ids: Int32) -> bool:
        self.has_begun.set()
        assert self.gate.wait(30)
        return super().write(name, token_ids)


def name(i: int) -> SessionName:
    return SessionName("tenant", "", str(i))


def tokens(first: int, num: int = 5) -> Int32:
    return np.arange(first, first + num, dtype=np.int32)


def known(folder: Path) -> dict[str, list[int]]:
    return {each.session_id: ids.tolist() for each, ids in SessionFiles(folder, "model", 10_000, 1 << 30).recall()}


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[GatedFiles]:
    """Its thread is busy with session 0."""
    files = GatedFiles(tmp_path)
    yield files
    files.gate.set()


def busy_book(files: GatedFiles) -> SessionBook:
    book = SessionBook(files)
    book.note(name(0), tokens(0))
    assert files.has_begun.wait(30)
    return book


def close(book: SessionBook, files: GatedFiles) -> None:
    files.gate.set()
    book.close()


def test_what_waits_is_written_before_the_end(tmp_path: Path) -> None:
    book = SessionBook(SessionFiles(tmp_path, "model", 100, 1 << 20))
    for i in range(50):
        book.note(name(i), tokens(i))
    book.forget(name(7))
    book.close()
    assert known(tmp_path) == {str(i): tokens(i).tolist() for i in range(50) if i != 7}


def test_nobody_waits_for_the_disk_and_the_newest_tokens_win(slow: GatedFiles, tmp_path: Path) -> None:
    book = busy_book(slow)
    for turn in range(3):
        for i in (1, 2):
            book.note(name(i), tokens(10 * turn + i))
    assert known(tmp_path) == {}
    close(book, slow)
    assert known(tmp_path) == {"0": tokens(0).tolist(), "1": tokens(21).tolist(), "2": tokens(22).tolist()}


def test_beyond_the_bound_the_oldest_are_left_out_and_counted(
    slow: GatedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(session_book, "MAX_WAITING_BYTES", 3 * (session_book.ENTRY_BYTES + 400))
    book = busy_book(slow)
    with caplog.at_level(logging.WARNING):
        for i in range(1, 11):
            book.note(name(i), tokens(i, 100))
    close(book, slow)
    assert book.num_left_out == 7
    assert set(known(tmp_path)) == {"0", "8", "9", "10"}
    assert len(caplog.records) == 1


def test_that_a_session_is_over_is_never_left_out(
    slow: GatedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.gate.set()
    first = SessionBook(slow)
    for i in range(20):
        first.note(name(i), tokens(i))
    first.close()
    slow.gate.clear()
    slow.has_begun.clear()
    monkeypatch.setattr(session_book, "MAX_WAITING_BYTES", 2 * session_book.ENTRY_BYTES)
    book = busy_book(slow)
    for i in range(20):
        book.forget(name(i))  # of 0 while it is being written
    for i in range(100, 110):
        book.note(name(i), tokens(i))
    close(book, slow)
    assert set(known(tmp_path)) == {"109"}


def test_a_session_that_comes_back_after_its_end_is_known(slow: GatedFiles, tmp_path: Path) -> None:
    book = busy_book(slow)
    book.note(name(1), tokens(1))
    book.forget(name(1))
    book.note(name(1), tokens(5))
    close(book, slow)
    assert known(tmp_path)["1"] == tokens(5).tolist()


def test_names_that_nobody_knows_take_no_memory(slow: GatedFiles) -> None:
    book = busy_book(slow)
    for i in range(1, 1000):
        book.forget(name(i))
    assert len(book._waiting) == 0
    close(book, slow)


def test_a_disk_that_fails_is_one_line_and_the_book_goes_on_when_it_works_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "sessions"
    files = SessionFiles(folder, "model", 100, 1 << 20)
    book = SessionBook(files)
    shutil.rmtree(folder)
    with caplog.at_level(logging.WARNING):
        for i in range(5):
            book.note(name(i), tokens(i))
        wait_until(lambda: not book._waiting and book._writing is None)
    assert [record.message for record in caplog.records] == [
        "a session was not written to the book of sessions: No such file or directory"
    ]
    folder.mkdir()
    book.note(name(9), tokens(9))
    book.close()
    assert set(known(folder)) == {"9"}

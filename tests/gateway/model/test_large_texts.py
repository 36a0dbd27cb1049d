"""Large texts in a process of their own: the same tokens, whatever becomes of the process."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.model.large_texts import LargeTexts
from gateway.model.text_process import NICENESS, PART_IDS
from gateway.model.work_pool import at_once
from tests.fakes.tokenizer_kinds import TOKENIZER_KINDS

TEXT = "Ein langer Text, 世界 and back. " * 1200  # in a process that stands back behind every other test


@pytest.fixture(params=["qwen"])
def texts(request: pytest.FixtureRequest) -> Iterator[LargeTexts]:
    made = LargeTexts(TOKENIZER_KINDS[request.param]())
    yield made
    made.close()


def expected(texts: LargeTexts, text: str) -> list[int]:
    return texts._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def encoded(texts: LargeTexts, *pieces: str, max_tokens: int | None = None) -> list[int] | None:
    return at_once(texts.encoding(list(pieces), max_tokens))


def process_id(texts: LargeTexts) -> int:
    assert texts._process is not None
    return texts._process.pid


@pytest.mark.parametrize("texts", ["qwen", "llama2", "unigram", "odd added tokens"], indirect=True)
def test_the_tokens_are_those_of_the_gateways_own_tokenizer(texts: LargeTexts) -> None:
    for text in (TEXT, "", "a\0b", "short"):
        assert encoded(texts, text) == expected(texts, text)


def test_pieces_come_as_one_list_that_is_sent_in_parts(texts: LargeTexts) -> None:
    ids = expected(texts, TEXT)
    assert len(ids) > 2 * PART_IDS
    assert encoded(texts, TEXT, " again", TEXT) == ids + expected(texts, " again") + ids
    steps = list(texts.encoding([TEXT], None))
    assert len(steps) == 1 + (len(ids) - 1) // PART_IDS


def test_texts_that_take_turns_stay_apart(texts: LargeTexts) -> None:
    works = [texts.encoding([TEXT, f" number {i}", TEXT], None) for i in range(3)]
    results: list[list[int] | None] = []
    while works:
        for work in list(works):
            try:
                next(work)
            except StopIteration as end:
                results.append(end.value)
                works.remove(work)
    ids = expected(texts, TEXT)
    assert results == [ids + expected(texts, f" number {i}") + ids for i in range(3)]


def test_no_more_is_encoded_than_a_text_may_have(texts: LargeTexts) -> None:
    num = len(expected(texts, TEXT))
    assert encoded(texts, TEXT, max_tokens=num) == expected(texts, TEXT)
    assert encoded(texts, TEXT, max_tokens=num - 1) is None
    work = texts.encoding([TEXT] * 9, num + 1)
    assert next(work) > 0
    with pytest.raises(StopIteration) as end:
        next(work)
    assert end.value.value is None


def test_a_text_that_is_given_up_is_forgotten_with_the_next(texts: LargeTexts) -> None:
    for _ in range(3):
        work = texts.encoding([TEXT, TEXT], None)
        next(work)
        work.close()
    assert len(texts._forgotten) == 1  # the others were told with the next
    assert encoded(texts, "anything") == expected(texts, "anything")
    assert len(texts._forgotten) == 1  # the last itself


def test_a_process_that_dies_between_two_pieces_has_both_again(texts: LargeTexts) -> None:
    work = texts.encoding([TEXT, " and", TEXT], None)
    next(work)
    os.kill(process_id(texts), signal.SIGKILL)
    assert encoded(texts, "another") == expected(texts, "another")  # a new process, which has not the first piece
    assert at_once(work) == expected(texts, TEXT) + expected(texts, " and") + expected(texts, TEXT)


def test_texts_whose_process_died_share_the_next(texts: LargeTexts, caplog: pytest.LogCaptureFixture) -> None:
    works = [texts.encoding([TEXT, f" number {i}", TEXT], None) for i in range(3)]
    for work in works:
        next(work)
    os.kill(process_id(texts), signal.SIGKILL)
    assert [next(work) for work in works] == [len(TEXT)] * 3  # begun once more
    second = process_id(texts)
    ids = expected(texts, TEXT)
    assert [at_once(work) for work in works] == [ids + expected(texts, f" number {i}") + ids for i in range(3)]
    assert process_id(texts) == second
    assert caplog.text == ""


def test_it_stands_back_behind_everybody(texts: LargeTexts) -> None:
    encoded(texts, "anything")
    expected_niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, process_id(texts)) == expected_niceness


def test_a_process_that_died_is_started_again(texts: LargeTexts) -> None:
    encoded(texts, "anything")
    first = process_id(texts)
    os.kill(first, signal.SIGKILL)
    assert encoded(texts, TEXT) == expected(texts, TEXT)
    assert process_id(texts) != first


def test_a_process_that_hangs_is_replaced(texts: LargeTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.model.large_texts.MAX_SECONDS", 1.0)
    encoded(texts, "anything")
    first = process_id(texts)
    os.kill(first, signal.SIGSTOP)
    assert encoded(texts, "again") == expected(texts, "again")
    assert texts._process is None or process_id(texts) != first


def test_without_a_process_the_thread_does_its_work(
    texts: LargeTexts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert encoded(texts, TEXT) == expected(texts, TEXT)
    assert "a thread of the gateway encodes instead" in caplog.text


def test_closing_ends_the_process_and_who_waits_for_it_goes_on(texts: LargeTexts) -> None:
    encoded(texts, "anything")
    process = process_id(texts)
    os.kill(process, signal.SIGSTOP)
    found: list[list[int] | None] = []
    waiting = threading.Thread(target=lambda: found.append(encoded(texts, "again")))
    waiting.start()
    time.sleep(0.05)
    texts.close()
    waiting.join(10.0)
    assert found == [expected(texts, "again")]
    assert not Path(f"/proc/{process}").exists()

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
from gateway.model.text_process import NICENESS
from tests.fakes.tokenizer_kinds import TOKENIZER_KINDS

TEXT = "Ein langer Text, 世界 and back. " * 4000


@pytest.fixture(params=["qwen"])
def texts(request: pytest.FixtureRequest) -> Iterator[LargeTexts]:
    made = LargeTexts(TOKENIZER_KINDS[request.param]())
    yield made
    made.close()


def expected(texts: LargeTexts, text: str) -> list[int]:
    return texts._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids


def process_id(texts: LargeTexts) -> int:
    assert texts._process is not None
    return texts._process.pid


@pytest.mark.parametrize("texts", ["qwen", "llama2", "unigram", "odd added tokens"], indirect=True)
def test_the_tokens_are_those_of_the_gateways_own_tokenizer(texts: LargeTexts) -> None:
    for text in (TEXT, "", "a\0b", "short"):
        assert texts.encode(text) == expected(texts, text)


def test_it_stands_back_behind_everybody(texts: LargeTexts) -> None:
    texts.encode("anything")
    expected_niceness = min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS)
    assert os.getpriority(os.PRIO_PROCESS, process_id(texts)) == expected_niceness


def test_a_process_that_died_is_started_again(texts: LargeTexts) -> None:
    texts.encode("anything")
    first = process_id(texts)
    os.kill(first, signal.SIGKILL)
    assert texts.encode(TEXT) == expected(texts, TEXT)
    assert process_id(texts) != first


def test_a_process_that_hangs_is_replaced(texts: LargeTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.model.large_texts.MAX_SECONDS", 1.0)
    texts.encode("anything")
    first = process_id(texts)
    os.kill(first, signal.SIGSTOP)
    assert texts.encode("again") == expected(texts, "again")
    assert texts._process is None or process_id(texts) != first


def test_without_a_process_the_thread_does_its_work(
    texts: LargeTexts, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    assert texts.encode(TEXT) == expected(texts, TEXT)
    assert "a thread of the gateway encodes instead" in caplog.text


def test_closing_ends_the_process_and_who_waits_for_it_goes_on(texts: LargeTexts) -> None:
    texts.encode("anything")
    process = process_id(texts)
    os.kill(process, signal.SIGSTOP)
    found: list[list[int]] = []
    waiting = threading.Thread(target=lambda: found.append(texts.encode("again")))
    waiting.start()
    time.sleep(0.05)
    texts.close()
    waiting.join(10.0)
    assert found == [expected(texts, "again")]
    assert not Path(f"/proc/{process}").exists()

"""Every kept input of every target, without a fuzzer: what was found once stays mended. The core's are in `ctest`."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.target import CORPUS, NAMES, Target

MAX_CORPUS_BYTES = 500_000


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_are_handled(name: str) -> None:
    target = Target.load(name)
    target.check(b"")
    for path in _inputs(name):
        try:
            target.check(path.read_bytes())
        except BaseException as error:
            error.add_note(f"the input is {path}")
            raise


def test_every_target_has_inputs_and_every_input_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == {*NAMES, "core"}
    assert all(_inputs(name) for name in (*NAMES, "core"))


def test_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*")) <= MAX_CORPUS_BYTES


def _inputs(name: str) -> list[Path]:
    return sorted(path for path in (CORPUS / name).iterdir() if path.is_file())

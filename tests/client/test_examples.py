"""The scripts in client/examples do what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from fakes.batch_server import FakeBatchServer
from fakes.chat_server import FakeChatServer

EXAMPLES = Path(__file__).resolve().parents[2] / "client" / "examples"
PRINTS = {
    "chat": ["You said: What is 7 + 5?", "You said: And twice that?"],
    "completions": ["'One, two, and so on' 0.00", "'Monday, Tuesday, and so on' 0.00"],
    "concurrent": [f"What is {n} + {n}? You said: What is {n} + {n}?" for n in range(1, 9)],
    "errors": ["choose another model: The model 'no-such-model' does not exist."],
    "stream": ["You said: Tell me a short story.", "7 tokens, first after"],
}


def test_the_batch_example(
    batch_server: FakeBatchServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOCKET_BASE_URL", batch_server.url)
    runpy.run_path(str(EXAMPLES / "batch.py"), run_name="__main__")
    expected = [f"What is {n} + {n}? You said: What is {n} + {n}?" for n in range(1, 9)]
    assert sorted(capsys.readouterr().out.splitlines()) == expected


def test_every_example_is_tried() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*PRINTS, "batch"}


@pytest.mark.parametrize("path", sorted(EXAMPLES / f"{name}.py" for name in PRINTS), ids=lambda path: path.stem)
def test_example(
    path: Path, server: FakeChatServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOCKET_BASE_URL", server.url)
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == len(PRINTS[path.stem])
    for line, expected in zip(printed, PRINTS[path.stem], strict=True):
        assert line.startswith(expected)
    assert server.received

"""`hocket calibrate`, from its command line to the profile that `hocket serve` takes."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gateway.cli import calibrate
from gateway.cli.main import main
from gateway.cli.options import OptionsError, engine_config
from schedcore.latency.latency_profile import load_profile

SMALL = ("--num-threads", "1", "--max-num-seqs", "4", "--max-num-batched-tokens", "64", "--max-model-len", "256")


def test_the_demo_model_gets_a_profile_that_serve_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "demo.json"
    arguments = ["calibrate", "demo", "--seconds", "0", "--kv-cache-memory-bytes", "4M", *SMALL]
    assert main([*arguments, "--output", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    profile = load_profile(path)
    assert report["profile"] == json.loads(path.read_bytes())
    assert (profile.model, profile.form) == ("demo", "corrected")
    assert profile.coefficients.hidden_token > 0
    assert report["corrected"]["held_out_error"]["mean"] < report["echo"]["held_out_error"]["mean"]
    assert engine_config({"latency_profile": str(path)}, tmp_path, "m").latency_profile == str(path)


def worker(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> str:
    """The name of a module with this code, which a worker process would find."""
    (folder / "scripted_worker.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return "scripted_worker"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("""print('{"type": "failure", "message": "there is no room"}')""", "there is no room"),
        ("import sys; sys.stdin.read(); sys.exit(7)", "ended with status 7"),
    ],
)
def test_a_worker_that_fails_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, words: str
) -> None:
    module = worker(tmp_path, monkeypatch, code)
    args = parsed(["demo", "--output", str(tmp_path / "never.json")])
    assert calibrate.run(args, module) == 1
    assert words in capsys.readouterr().err
    assert not (tmp_path / "never.json").exists()


def test_what_cannot_work_is_said_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["calibrate", "demo", "--output", str(tmp_path / "no" / "folder" / "p.json")]) == 2
    assert "is no directory" in capsys.readouterr().err
    assert main(["calibrate", str(tmp_path / "nothing")]) == 1
    assert "nothing" in capsys.readouterr().err
    assert main(["calibrate", "demo", "--block-size", "1000"]) == 2
    assert "block_size must be between 1 and 256" in capsys.readouterr().err


def test_serve_refuses_a_profile_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    with pytest.raises(OptionsError, match="cannot be read: No such file"):
        engine_config({"latency_profile": str(path)}, tmp_path, "m")
    for content in ("{}", "no JSON", '{"model": "m", "device": "d", "coefficients": {"decode_seq": -1}}'):
        path.write_text(content)
        with pytest.raises(OptionsError, match=r"profile.json is no latency profile"):
            engine_config({"latency_profile": str(path)}, tmp_path, "m")


def parsed(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    return parser.parse_args(arguments)


def test_a_hub_id_makes_a_file_name() -> None:
    assert calibrate._file_name("org/Model-1.5B") == "org-Model-1.5B"
    assert calibrate._file_name("..") == "model"

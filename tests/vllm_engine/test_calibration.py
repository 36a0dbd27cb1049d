"""`hocket calibrate --engine vllm`. HOCKET_TEST_VLLM_PYTHON names the Python that has vLLM (make test-vllm)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.cli.main import main
from schedcore.latency.latency_profile import load_profile

PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
SMALL = ("--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--max-num-batched-tokens", "128")


def test_another_engines_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "demo", "--vllm-python", "python3"]) == 2
    assert "need --engine vllm" in capsys.readouterr().err
    assert main(["calibrate", "demo", "--engine", "vllm", "--vllm-python", "/no/such/python"]) == 2
    assert "is no program" in capsys.readouterr().err


@pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
def test_vllms_steps_become_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "demo.json"
    arguments = ["--engine", "vllm", "--vllm-python", str(PYTHON), "--kv-cache-memory-bytes", "64M", *SMALL]
    assert main(["calibrate", "demo", "--seconds", "0", *arguments, "--output", str(path), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    profile = load_profile(path)
    assert report["profile"] == json.loads(path.read_bytes())
    assert (profile.form, profile.error.num_samples > 5) == ("corrected", True)
    assert "vLLM" in profile.device
    assert profile.to_model().predict is not None


@pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
def test_a_model_that_vllm_refuses_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nobodys", "architectures": ["Nobodys"]}')
    assert main(["calibrate", str(tmp_path), "--engine", "vllm", "--vllm-python", str(PYTHON)]) == 1
    assert "cannot be measured" in capsys.readouterr().err

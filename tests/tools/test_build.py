"""tools/build.py: what is shown of minutes of pip's output, and what is compiled."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "tools/build.py"


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_tool", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("  Downloading torch-2.13.0-cp311.whl (888.1 MB)\n", "Downloading torch-2.13.0-cp311.whl (888.1 MB)"),
        ("  [7/20] Building CXX object a/kernels_avx2.dir/cpu/linear.cpp.o\n", "[7/20] kernels_avx2: linear"),
        ("  [3/20] Building CXX object CMakeFiles/core.dir/Unity/unity_cache_cxx.cxx.o", "[3/20] core: cache"),
        ("[18/20] Linking CXX shared module a/_kernels.cpython-311.so", "[18/20] _kernels.cpython-311.so"),
        ("  -- CUDA kernels: OFF (no CUDA device was found)", "CUDA kernels: OFF (no CUDA device was found)"),
        ("Installing collected packages: torch, numpy, hocket-server", "Installing collected packages"),
        ("Requirement already satisfied: numpy in /somewhere", None),
    ],
)  # fmt: skip
def test_steps_are_shown_and_nothing_else(build: ModuleType, line: str, shown: str | None) -> None:
    assert build.progress(line) == shown


def test_a_failure_shows_the_end_of_the_output(
    build: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(build, "LOG", tmp_path / "build/build.log")
    program = "print('[1/2] Linking CXX shared module a/b.so'); print('error: no such thing'); raise SystemExit(3)"
    assert build.run([sys.executable, "-c", program]) == 3
    out, error = capsys.readouterr()
    assert "[1/2] b.so" in out
    assert "no such thing" not in out
    assert "error: no such thing" in error
    assert "no such thing" in (tmp_path / "build/build.log").read_text()


@pytest.mark.parametrize(("cuda", "value"), [("auto", "AUTO"), ("1", "ON"), ("0", "OFF")])
def test_cuda_is_passed_on(build: ModuleType, cuda: str, value: str) -> None:
    assert f"-Ccmake.define.HOCKET_CUDA={value}" in build.pip_command(cuda, has_twins=False)

"""A CUDA kernel has a test on a device, and on the emulation, and a benchmark: by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = sorted((ROOT / "kernels/cuda").rglob("*.cu*"))
KERNELS = [path.stem for path in SOURCES if path.suffix == ".cu"]


@pytest.mark.parametrize("name", KERNELS)
def test_is_tested_and_measured(name: str) -> None:
    (path,) = (ROOT / "tests/kernels").rglob(f"test_{name}.py")
    text = path.read_text()
    assert "device: KernelDevice" in text  # conftest.py has CUDA and its emulation among them
    assert f"ops.{name}(" in (ROOT / "bench/run/parts/kernels.py").read_text()


def test_host_code_can_be_recorded_in_a_graph() -> None:
    """Nothing allocates, waits, or launches on a stream of its own."""
    forbidden = ("cudaMalloc", "cudaFree", "Synchronize", "cudaMemcpy", "cudaStreamCreate", "<<<", "cudaStreamLegacy")
    found = {}
    for path in [*SOURCES, *(ROOT / "kernels").glob("*.cpp")]:
        found[path.name] = [word for word in forbidden if word in path.read_text()]
    assert {name: words for name, words in found.items() if words} == {"launch.cuh": ["<<<"]}

"""A CUDA kernel has a test on a device, and on the emulation, and a benchmark: by its name."""

from __future__ import annotations

import re
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


def test_kernels_that_are_launched_early_wait_before_anything_else() -> None:
    """Every block of them, or those behind would not wait for those before."""
    texts = [path.read_text() for path in SOURCES]
    names = {name for text in texts for name in re.findall(r"launch_early\((?:cuda::)?(\w+_kernel)", text)}
    assert {"gemv_kernel", "decode_kernel", "tile_kernel", "rms_norm_kernel"} <= names
    for name in names:
        (body,) = [
            found
            for text in texts
            for found in re.findall(rf"__global__[^;{{]*\b{name}\([^)]*\) {{(.*?)^}}", text, re.M | re.S)
        ]
        waits = re.search(r"begin_early\(\);|wait_for_predecessors\(\);", body)
        assert waits, name
        assert "return" not in body[: waits.start()], name
        assert "args.x" not in body[: waits.start()], name


def test_host_code_can_be_recorded_in_a_graph() -> None:
    """Nothing allocates, waits, or launches on a stream of its own."""
    forbidden = ("cudaMalloc", "cudaFree", "Synchronize", "cudaMemcpy", "cudaStreamCreate", "<<<", "cudaStreamLegacy")
    found = {}
    for path in [*SOURCES, *(ROOT / "kernels").glob("*.cpp")]:
        found[path.name] = [word for word in forbidden if word in path.read_text()]
    assert {name: words for name, words in found.items() if words} == {"launch.cuh": ["<<<"]}

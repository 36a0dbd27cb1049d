"""Where a kernel test runs: on an instruction set with some threads, a CUDA device, or CUDA kernels emulated."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bench.lib.alone import alone_in
from worker import _kernels
from worker.ops import native

ROOT = Path(__file__).resolve().parents[2]
EMULATION = ROOT / "tests/kernels/cuda_emulation"
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class KernelDevice:
    kernels: str  # an instruction set, "cuda" or "emulated"
    num_threads: int = 1

    def __str__(self) -> str:
        return self.kernels if self.is_cuda else f"{self.kernels}-{self.num_threads}"

    @property
    def is_cuda(self) -> bool:
        """CUDA kernels do the work, on a device or emulated."""
        return self.kernels in ("cuda", "emulated")

    @property
    def torch_name(self) -> str:
        return "cuda" if self.kernels == "cuda" else "cpu"

    @property
    def activation_dtypes(self) -> tuple[torch.dtype, ...]:
        return FLOATS if self.is_cuda else (torch.float32,)

    def activation_dtype(self, pool_dtype: torch.dtype) -> torch.dtype:
        return pool_dtype if self.is_cuda else torch.float32

    def attention_dtype(self, pool_dtype: torch.dtype) -> torch.dtype:
        """What queries and weights are rounded to before they are multiplied with the cache's vectors."""
        multiplies_pairs = self.kernels in ("avx512_bf16", "avx512_amx") and pool_dtype is torch.bfloat16
        return pool_dtype if multiplies_pairs else self.activation_dtype(pool_dtype)

    def synchronize(self) -> None:
        if self.kernels == "cuda":
            torch.cuda.synchronize()

    def skip_if_too_slow(self, num_operations: int) -> None:
        """The emulation does some hundred thousand operations per second."""
        if self.kernels == "emulated" and num_operations > 2_000_000:
            pytest.skip("too large for the emulation")

    @contextmanager
    def chosen(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        if self.kernels == "cuda":
            if not (torch.cuda.is_available() and _kernels.has_cuda):
                pytest.skip("needs a CUDA device and kernels built for it")
            yield
        elif self.kernels == "emulated":
            with _emulated(monkeypatch):
                yield
        else:
            with _on_cpu(self.kernels, self.num_threads):
                yield


def has_isa(name: str) -> bool:
    before = _kernels.isa()
    try:
        _kernels.set_isa(name)
    except ValueError:
        return False
    _kernels.set_isa(before)
    return True


@contextmanager
def _on_cpu(isa: str, num_threads: int) -> Iterator[None]:
    before = _kernels.isa(), _kernels.num_threads()
    _kernels.set_isa(isa)
    _kernels.set_num_threads(num_threads)
    yield
    _kernels.set_isa(before[0])
    _kernels.set_num_threads(before[1])


@contextmanager
def _emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """CPU tensors are taken for CUDA tensors by native.py, and by the emulated kernels."""
    module = emulated_module("_kernels")
    with monkeypatch.context() as patch:
        patch.setattr(native, "kernels", module)
        patch.setattr(native, "stream", lambda x: 0)
        patch.setattr(native, "common_dtype", _any_dtype(native.common_dtype))
        yield


def _any_dtype(checked: Callable[..., int]) -> Callable[..., int]:
    def common_dtype(*tensors: torch.Tensor) -> int:
        dtype = tensors[0].dtype
        if dtype not in FLOATS or any(t.dtype is not dtype for t in tensors):
            return checked(*tensors)  # refuses
        return native.DTYPES[dtype]

    return common_dtype


@cache
def emulated_module(name: str) -> ModuleType:
    """_kernels or _recompute_decode. Built on first use; a fraction of a second where nothing changed."""
    if shutil.which("nvcc") is None:
        pytest.skip("needs the headers of the CUDA toolkit")
    bin_folder = Path(sys.executable).parent
    build = ROOT / "build/cuda-emulation"
    pybind11 = subprocess.check_output([sys.executable, "-m", "pybind11", "--cmakedir"], text=True).strip()
    configure = [bin_folder / "cmake", "-S", EMULATION, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={bin_folder / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    with alone_in(build):
        subprocess.run([*configure, f"-Dpybind11_DIR={pybind11}"], check=True, stdout=subprocess.PIPE)
        subprocess.run([bin_folder / "cmake", "--build", build], check=True, stdout=subprocess.PIPE)
    (path,) = build.glob(f"{name}.*.so")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

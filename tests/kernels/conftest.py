"""Every kernel test runs on every instruction set that this machine has, with one thread and with two, and on CUDA
where there is a device. So that the CUDA kernels are tested everywhere, also on the emulation in cuda_emulation/.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from fakes.kernel_device import KernelDevice, has_isa

CPU_VARIANTS = [
    ("generic", 2), ("avx2", 1), ("avx2", 2), ("avx2_w16", 2),
    ("avx512", 1), ("avx512", 2), ("avx512_vnni", 2), ("avx512_bf16", 1), ("avx512_bf16", 2),
    ("avx512_amx", 1), ("avx512_amx", 2),
]  # fmt: skip
CPU_DEVICES = [KernelDevice(isa, num_threads) for isa, num_threads in CPU_VARIANTS if has_isa(isa)]
CUDA_DEVICES = [KernelDevice("emulated"), pytest.param(KernelDevice("cuda"), marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def _quiet_torch() -> Iterator[None]:
    """The twins' tensors are small: torch's own threads would cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=[*CPU_DEVICES, *CUDA_DEVICES], ids=str)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelDevice]:
    with request.param.chosen(monkeypatch):
        yield request.param


@pytest.fixture(params=CUDA_DEVICES, ids=str)
def cuda_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelDevice]:
    """For kernels that the CPU has none of: there the twin would be compared with itself."""
    with request.param.chosen(monkeypatch):
        yield request.param


@pytest.fixture(params=CPU_DEVICES, ids=str)
def cpu_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelDevice]:
    with request.param.chosen(monkeypatch):
        yield request.param

"""Every kernel test runs on every instruction set that this machine has, with one thread and with two, and on CUDA."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from worker import _kernels


def _has_isa(name: str) -> bool:
    before = _kernels.isa()
    try:
        _kernels.set_isa(name)
    except ValueError:
        return False
    _kernels.set_isa(before)
    return True


CPU_VARIANTS = [("generic", 2), ("avx2", 1), ("avx2", 2), ("avx2_w16", 2), ("avx512", 1), ("avx512", 2)]
CPU_VARIANTS = [(isa, num_threads) for isa, num_threads in CPU_VARIANTS if _has_isa(isa)]


@pytest.fixture(autouse=True)
def _quiet_torch() -> Iterator[None]:
    """The twins' tensors are small: torch's own threads would cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(
    params=[*CPU_VARIANTS, pytest.param("cuda", marks=pytest.mark.gpu)],
    ids=lambda p: p if isinstance(p, str) else f"{p[0]}-{p[1]}",
)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device to put tensors on; on CPU with one instruction set and number of threads chosen."""
    if request.param == "cuda":
        if not (torch.cuda.is_available() and _kernels.has_cuda):
            pytest.skip("needs a CUDA device and kernels built for it")
        yield "cuda"
        return
    isa, num_threads = request.param
    isa_before, threads_before = _kernels.isa(), _kernels.num_threads()
    _kernels.set_isa(isa)
    _kernels.set_num_threads(num_threads)
    yield "cpu"
    _kernels.set_isa(isa_before)
    _kernels.set_num_threads(threads_before)

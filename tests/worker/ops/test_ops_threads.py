"""Threads: our kernels' pool and torch's do not spin on the same cores, and the pool lives among other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch

from worker import ops

# Takes its CPU away from whoever computes there, for most of a millisecond, as a gateway does.
_INTRUDER = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
while True:
    end = time.perf_counter() + 0.0007
    while time.perf_counter() < end:
        pass
    time.sleep(0.0009)
"""
_SECONDS = 1.0


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = ops.num_threads(), torch.get_num_threads()
    yield
    ops.set_num_threads(before[0])
    torch.set_num_threads(before[1])


@pytest.fixture
def _intruders() -> Iterator[None]:
    """One on each CPU."""
    processes = [subprocess.Popen([sys.executable, "-c", _INTRUDER, str(cpu)]) for cpu in os.sched_getaffinity(0)]
    yield
    for process in processes:
        process.kill()
        process.wait()


def test_torch_keeps_to_the_callers_thread_where_our_kernels_have_a_pool() -> None:
    ops.set_num_threads(3)
    assert ops.num_threads() == 3
    assert torch.get_num_threads() == (1 if ops.backend(torch.device("cpu")) != "torch" else 3)


@pytest.mark.usefixtures("_intruders")
def test_threads_that_lose_their_cpu_in_a_task_change_neither_results_nor_where_the_caller_may_run() -> None:
    cpus = os.sched_getaffinity(0)
    ops.set_num_threads(len(cpus))  # then each worker has a CPU of its own
    packed = ops.pack_linear(torch.randn(1024, 256))
    x = torch.randn(16, 256)
    expected = ops.linear(x, packed)
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        assert torch.equal(ops.linear(x, packed), expected)
    assert os.sched_getaffinity(0) == cpus

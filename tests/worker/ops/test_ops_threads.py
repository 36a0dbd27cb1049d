"""Threads: our kernels' pool and torch's do not spin on the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from worker import ops


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = ops.num_threads(), torch.get_num_threads()
    yield
    ops.set_num_threads(before[0])
    torch.set_num_threads(before[1])


def test_torch_keeps_to_the_callers_thread_where_our_kernels_have_a_pool() -> None:
    ops.set_num_threads(3)
    assert ops.num_threads() == 3
    assert torch.get_num_threads() == (1 if ops.backend(torch.device("cpu")) != "torch" else 3)


# Two CPUs, as many threads: the first kernel that shares its work, then kernels while a CPU is lent, then another that
# shares. The worker may be kept from its CPU by others' processes, so it is asked until it has worked.
LENT = """
import time
import torch
from worker import ops

ops.set_num_threads(2)
x, weight = torch.randn(64, 512), ops.pack_linear(torch.randn(2048, 512))

def others_share(num_calls):
    before = time.process_time(), time.thread_time()
    for _ in range(num_calls):
        assert torch.equal(ops.linear(x, weight), expected)
    used = time.process_time() - before[0], time.thread_time() - before[1]
    return (used[0] - used[1]) / used[0]

def wait_for_sharing():
    while others_share(20) < 0.1:
        pass

expected = ops.linear(x, weight)
wait_for_sharing()
ops.lend_cpu()
ops.lend_cpu()
ops.take_cpu_back()
others_share(5)  # a task that was under way, and falling asleep
print(others_share(100))
ops.take_cpu_back()
wait_for_sharing()
"""


@pytest.mark.skipif(
    ops.backend(torch.device("cpu")) == "torch" or len(os.sched_getaffinity(0)) < 2, reason="needs our pool and 2 CPUs"
)
def test_a_worker_keeps_off_a_cpu_that_is_lent() -> None:
    cpus = ",".join(str(cpu) for cpu in sorted(os.sched_getaffinity(0))[:2])
    code = f"import os; os.sched_setaffinity(0, {{{cpus}}})\n{LENT}"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 0.02

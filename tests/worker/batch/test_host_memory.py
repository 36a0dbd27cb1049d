"""Freed tensors stay with the process: in a process of its own, as the setting is for good. Weights lie close."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch

from worker.batch.host_memory import HugePageMemory, IdleTime, make_resident, map_huge_pages

ROOT = Path(__file__).resolve().parents[3]
FAULTS = """
import resource, sys, torch
from worker.batch.host_memory import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
torch.set_num_threads(1)
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.ones(48 << 18)  # 48 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


def kernel_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", platform.release())[:2])


def faults(setting: str) -> int:
    command = [sys.executable, "-c", FAULTS, setting]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_a_tensor_made_again_costs_no_page_faults() -> None:
    without, kept = faults("default"), faults("keep")
    assert kept < 100 < without


def test_tensors_that_stay_lie_one_behind_the_other() -> None:
    memory = HugePageMemory()
    first, second = memory.empty((3, 5), torch.bfloat16), memory.empty((7,), torch.float32)
    assert second.data_ptr() - first.data_ptr() == 64
    assert first.data_ptr() % 64 == 0
    first.fill_(1)
    second.fill_(2)
    assert first.sum() == 15
    assert second.sum() == 14


def test_a_tensor_larger_than_a_piece_has_one_of_its_own() -> None:
    memory = HugePageMemory()
    small, large = memory.empty((1,), torch.float32), memory.empty((30 << 20,), torch.float32)
    large[-1] = 3.0
    small[0] = 1.0
    assert large[-1] == 3.0
    assert memory.empty((0, 4), torch.float32).shape == (0, 4)


def test_a_tensor_outlives_its_memory() -> None:
    tensor = HugePageMemory().empty((1000,), torch.float32).fill_(7)
    assert tensor.sum() == 7000


@pytest.mark.skipif(kernel_version() < (5, 14), reason="this Linux cannot be asked to")
def test_memory_becomes_resident_and_keeps_its_content() -> None:
    num_bytes = 64 << 20
    tensor, other = (torch.frombuffer(map_huge_pages(num_bytes), dtype=torch.uint8) for _ in range(2))
    tensor[5] = 7
    before = psutil.Process().memory_info().rss
    make_resident(tensor[1:], other).join()
    assert psutil.Process().memory_info().rss - before > 3 * num_bytes // 2
    assert (tensor.sum(), other.sum()) == (7, 0)


@pytest.mark.skipif(kernel_version() < (5, 14), reason="this Linux cannot be asked to")
def test_some_memory_becomes_resident_at_once() -> None:
    num_bytes = 64 << 20
    tensor = torch.frombuffer(map_huge_pages(num_bytes), dtype=torch.uint8)
    before = psutil.Process().memory_info().rss
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IdleTime, "wait", lambda self: pytest.fail("somebody waits for idle time"))
        thread = make_resident(tensor, at_once_seconds=60)
        assert psutil.Process().memory_info().rss - before > num_bytes // 2
        thread.join()


def seconds_of(wait: Callable[[], None]) -> float:
    begin = time.monotonic()
    wait()
    return time.monotonic() - begin


def test_who_waits_for_idle_time_lets_other_threads_go_first() -> None:
    idle, is_over = IdleTime(), threading.Event()

    def compute() -> None:
        while not is_over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        waits = [seconds_of(idle.wait) for _ in range(5)]
        assert max(waits) >= 0.1
    finally:
        is_over.set()
        thread.join()
    assert min(seconds_of(idle.wait) for _ in range(5)) < 0.1

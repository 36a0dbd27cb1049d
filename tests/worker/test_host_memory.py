"""Freed tensors stay with the process: in a process of its own, as the setting is for good."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = """
import resource, sys, torch
from worker.host_memory import keep_freed_memory
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


def faults(setting: str) -> int:
    command = [sys.executable, "-c", FAULTS, setting]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def test_a_tensor_made_again_costs_no_page_faults() -> None:
    without, kept = faults("default"), faults("keep")
    assert kept < 100 < without

"""Threads of a model on CPU that runs in the engine's own process, by vLLM's own rules for workers that do not.

To a worker of its own vLLM leaves one core less than there are. A model in the scheduler's process it gives a thread
per core (0.32, platforms/cpu.py: "not possible to set the OMP environment correctly"), and each of them spins at every
barrier for one that waits for a core that the gateway has: 26 ms of CPU time for a step that takes 1.1 ms of it.
"""

from __future__ import annotations

import os
from typing import Any

THREADS, BINDING, AUTO = "OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND", "auto"


def limit_threads(vllm_config: Any) -> None:
    """Of this process. REQUIRES: a configuration for CPU; nothing has been computed yet."""
    is_told = os.environ.get(BINDING, AUTO) != AUTO
    if not is_told and THREADS in os.environ:
        return  # torch has read it
    import torch
    from vllm.utils.ompmultiprocessing import OMPProcessManager

    rules = OMPProcessManager(vllm_config)
    if not rules.cpu_lists:  # nobind
        return
    cores = [int(core) for core in rules.cpu_lists[0]]
    # Before there are threads, who have it from this one. Whose cores nobody named may move to the one that is left.
    os.sched_setaffinity(0, cores if is_told else {*cores, *map(int, rules.reserved_cpu_list)})
    torch.set_num_threads(len(cores))

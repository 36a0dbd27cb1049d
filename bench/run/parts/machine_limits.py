"""How fast memory can be read here (after STREAM, read only), the limit of a decode step whose weights fit no cache,
and how fast bfloat16 is multiplied, the limit of prompts and of steps with many decodes.

    python -m bench.run.parts.machine_limits [--threads 1 2] [--megabytes 512] [--seconds 2]

Best of the runs that fit into the time: what others take from the machine only lowers it. Where the instruction set has
no products of bfloat16, they are of float32. And what the first write to fresh memory costs, by which
worker/batch/host_memory.py explains make_resident().
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from worker import _kernels
from worker.batch.host_memory import map_huge_pages
from worker.ops.native import DTYPES

MEMORY_BYTES = 512 << 20
ROUNDS = 100_000  # some milliseconds


def read_bandwidth(num_threads: int, num_bytes: int = MEMORY_BYTES, seconds: float = 1.0) -> float:
    """Bytes per second of the fastest pass over `num_bytes` with our kernels' own threads."""
    data = np.full(num_bytes // 4, 1.0, np.float32)  # written, so that every page is there
    before = _kernels.num_threads()
    _kernels.set_num_threads(num_threads)
    try:
        best, end = float("inf"), time.perf_counter() + seconds
        while best == float("inf") or time.perf_counter() < end:
            start = time.perf_counter()
            _kernels.read_limit(data.ctypes.data, data.nbytes)
            best = min(best, time.perf_counter() - start)
    finally:
        _kernels.set_num_threads(before)
    return data.nbytes / best


def arithmetic_speed(num_threads: int, seconds: float = 1.0) -> float:
    """Operations per second, a multiply-add counts two, of the fastest run of our kernels' own threads."""
    before = _kernels.num_threads()
    _kernels.set_num_threads(num_threads)
    try:
        best, end = 0.0, time.perf_counter() + seconds
        while best == 0.0 or time.perf_counter() < end:
            start = time.perf_counter()
            done = _kernels.arithmetic_limit(ROUNDS, DTYPES[torch.bfloat16])
            best = max(best, done / (time.perf_counter() - start))
    finally:
        _kernels.set_num_threads(before)
    return best


def first_write_seconds(num_bytes: int = 64 << 20) -> tuple[float, float]:
    """Of writing to fresh memory, and of writing there again."""
    memory = np.frombuffer(map_huge_pages(num_bytes), np.uint8)
    laps = []
    for value in (1, 2):
        start = time.perf_counter()
        memory[:] = value
        laps.append(time.perf_counter() - start)
    return laps[0], laps[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--megabytes", type=int, default=MEMORY_BYTES >> 20, help="beyond every cache (default: 512)")
    parser.add_argument("--seconds", type=float, default=2.0, help="per number of threads")
    args = parser.parse_args()
    for num_threads in args.threads:
        speed = read_bandwidth(num_threads, args.megabytes << 20, args.seconds)
        operations = arithmetic_speed(num_threads, args.seconds)
        name = f"{num_threads} thread{'s' if num_threads > 1 else ''}"
        print(f"{name}: {speed / 1e9:.1f} GB/s, {operations / 1e9:.0f} GFLOP/s in bfloat16")
    first, again = (1e3 * seconds / 64 for seconds in first_write_seconds())
    print(f"first write to fresh memory: {first:.2f} ms per MiB, again: {again:.3f}")


if __name__ == "__main__":
    main()

"""Decodes beside sequences that compute their first tokens again: in one launch, and one part after the other.

    python -m bench.proofs.recompute_decode.measure [--runs 100]

On a CUDA device only. `us` with 64, 128 and 192 of each block's 256 threads for recomputation, and of
ops.paged_attention() on the same batch.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch

from bench.lib.model.paged_batch import make_paged_batch
from bench.lib.table import render
from bench.proofs.recompute_decode.fused import recompute_decode
from worker import ops

SHAPES = ((64, 1024, 8, 128), (64, 1024, 64, 128))  # decodes and their contexts, sequences and their recomputed tokens
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
THREADS = (64, 128, 192)


def microseconds(run: Callable[[], object], num_runs: int) -> float:
    """The mean of runs back to back."""
    run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(num_runs):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1000 / num_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device")
    rows = []
    for num_decodes, past, num_recomputed, recomputed in SHAPES:
        sequences = [(1, past)] * num_decodes + [(recomputed, recomputed)] * num_recomputed
        batch, pool = make_paged_batch(sequences, KV_HEADS, HEAD_DIM, torch.bfloat16, "cuda")
        q = torch.randn(len(batch.positions), HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
        fused = partial(recompute_decode, q, batch, pool, 0, 0.1, num_decodes=num_decodes)
        runs = [partial(fused, recompute_threads=threads) for threads in THREADS]
        times = [microseconds(run, args.runs) for run in (*runs, partial(ops.paged_attention, q, batch, pool, 0, 0.1))]
        name = f"{num_decodes} after {past}, {num_recomputed} x {recomputed}"
        rows.append([name, *(f"{time:.1f}" for time in times)])
    print(render(["decodes, recomputed", *map(str, THREADS), "paged_attention"], rows))


if __name__ == "__main__":
    main()

"""Attention of decodes and of sequences that are computed again, at once in one launch (eLLM section 4.3.2). CUDA only.

No part of the engine calls it: docs/log/2026-11-21-fused-recompute.md says why.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from torch import Tensor

from bench.lib.alone import alone_in
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.ops import native

FOLDER = Path(__file__).parent
BUILD = FOLDER.parents[2] / "build/recompute-decode"


def recompute_decode(
    q: Tensor,
    batch: StepBatch,
    pool: PagedPool,
    layer: int,
    scale: float,
    sliding_window: int = 0,
    *,
    num_decodes: int,
    recompute_threads: int,
) -> Tensor:
    """ops.paged_attention() of a batch whose first num_decodes sequences have one query token each.

    recompute_threads of each block's 256, a multiple of 32, are for the other sequences, the rest for the decodes. Of
    16 bits an element; RuntimeError for what the kernel cannot take.
    """
    num_tokens, num_heads, head_dim = q.shape
    out = q.new_empty(num_tokens, num_heads, head_dim)
    arguments = {
        "out": out.data_ptr(), "q": q.data_ptr(), "rows": batch.rows.data_ptr(),
        "query_start": batch.query_start.data_ptr(), "seq_lens": batch.seq_lens.data_ptr(),
        "data": pool.data.data_ptr(), "block_table": pool.block_table.data_ptr(),
        "layers_per_unit": pool.layers_per_unit, "block_size": pool.block_size, "num_kv_heads": pool.num_kv_heads,
        "head_dim": head_dim, "num_groups": pool.num_groups, "max_blocks": pool.block_table.shape[-1],
        "layer": layer, "num_tokens": num_tokens, "num_seqs": len(batch.rows), "num_heads": num_heads,
        "q_stride": q.stride(0), "sliding_window": sliding_window, "max_query_len": batch.max_query_len,
        "max_seq_len": batch.max_seq_len, "scale": scale, "dtype": native.DTYPES[q.dtype], "workspace": 0,
        "num_decodes": num_decodes, "recompute_threads": recompute_threads,
    }  # fmt: skip
    kernel = fused_kernel()
    workspace = torch.empty(kernel.workspace_bytes(arguments), dtype=torch.uint8, device=q.device)
    kernel.recompute_decode({**arguments, "workspace": workspace.data_ptr()}, native.stream(q))
    return out


@cache
def fused_kernel() -> ModuleType:
    """Built on first use, for the device of this machine."""
    tools = Path(sys.executable).parent
    pybind11 = subprocess.check_output([sys.executable, "-m", "pybind11", "--cmakedir"], text=True).strip()
    configure = [tools / "cmake", "-S", FOLDER, "-B", BUILD, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release"]
    configure += [f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", f"-DPython_EXECUTABLE={sys.executable}"]
    with alone_in(BUILD):
        subprocess.run([*configure, f"-Dpybind11_DIR={pybind11}"], check=True)
        subprocess.run([tools / "cmake", "--build", BUILD], check=True)
    (path,) = BUILD.glob("_recompute_decode.*.so")
    spec = spec_from_file_location("_recompute_decode", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

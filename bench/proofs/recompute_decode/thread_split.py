"""How many of the fused kernel's threads recompute and how many decode (eLLM section 4.3.2).

The two parts run side by side in every block and should end together, so threads are split in proportion to the
volumes, in whole warps, at least one each.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

WARP = 32

Float64 = npt.NDArray[np.float64]


def fused_volumes(
    lengths: Float64,
    uncached_ratio: float,
    hidden_size: float,
    vocabulary: float,
    recomputed_layers: int,
    swapped_layers: int,
) -> tuple[float, float]:
    """FLOPs of recomputation and of decoding: the paper's V_K1 and V_K2, eq. 8 and 9.

    lengths: tokens of each request, of which the first uncached_ratio are recomputed through recomputed_layers.
    """
    h, r = hidden_size, uncached_ratio
    tokens, squares = float(lengths.sum()), float((lengths**2).sum())
    recomputed = recomputed_layers * (24 * h**2 * tokens * r + 4 * h * squares * r**2) + 2 * h * vocabulary * tokens * r
    decoded = (24 * h**2 * len(lengths) + 4 * h * (tokens + len(lengths))) * (recomputed_layers + swapped_layers)
    return recomputed, decoded + 2 * h * vocabulary * tokens


def split_threads(recompute_volume: float, decode_volume: float, total_threads: int) -> int:
    """Threads for recomputation; decoding gets the rest.

    Of the multiples of 32 the one at which the slower part ends first; of two equal ones the one that leaves more to
    decoding. Raises ValueError for a block of less than two warps, or of parts of one.
    """
    if total_threads % WARP or total_threads < 2 * WARP:
        raise ValueError(f"a block has two warps or more, not {total_threads} threads")
    num_warps = total_threads // WARP
    volume = recompute_volume + decode_volume
    if not volume > 0:
        return num_warps // 2 * WARP
    # Both times are monotonic in the split and cross at proportionality: the best number of warps is next to it.
    below = int(num_warps * (recompute_volume / volume))
    candidates = [min(max(warps, 1), num_warps - 1) for warps in (below, below + 1)]
    return WARP * min(candidates, key=lambda warps: max(recompute_volume / warps, decode_volume / (num_warps - warps)))

"""What dropping a session's later layers first would save, against dropping its last blocks, at the same memory.

    python -m bench.proofs.layer_eviction [--models llama-3.1-8b opt-13b] [--decodes 32] [--new-tokens 100]

A session comes back beside decodes. The device has kept a share of its units; the others come from the host, lowest
layer group first, while the step computes group after group (docs/caching.md). Kept are either the first blocks with
all their layers, or the lower layer groups of all blocks. The stall is what the step takes longer than without a copy.
Simulated: step times of an A100, copies at what PCIe gives; exact but for the noise of a machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from bench.lib.table import render
from schedcore._core import algorithms
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import ModelShape, model_shape

LAYERS_PER_UNIT = 4
DECODE_CONTEXT = 1000
CONTEXTS = (500, 1000, 2000, 4000, 8000)
KEPT = (0.0, 0.25, 0.5, 0.75)
HEADER = (
    "model", "tokens", "step ms", "copies ms", "kept", "stall ms: first blocks", "lower layers", "saved, of the step",
)  # fmt: skip


def kept_by_blocks(share: float, num_groups: int) -> list[float]:
    """Of each layer group, what is missing: the same of all."""
    return [1.0 - share] * num_groups


def kept_by_layers(share: float, num_groups: int) -> list[float]:
    """Whole groups from the lowest up, and of one a part."""
    return [min(1.0, max(0.0, group + 1 - share * num_groups)) for group in range(num_groups)]


def stall(missing: Sequence[float], copy_seconds: float, step_seconds: float) -> float:
    """missing: of each group, from 0 to 1. copy_seconds: of all groups in full. Groups land in order and are computed
    in order, each once it has landed."""
    num_groups = len(missing)
    landed = computed = 0.0
    for part in missing:
        landed += part * copy_seconds / num_groups
        if part > 0:
            computed = max(computed, landed)
        computed += step_seconds / num_groups
    return computed - step_seconds


def step_seconds(shape: ModelShape, num_tokens: int, num_new: int, num_decodes: int) -> float:
    """Of a step with the session's new tokens and decodes of others."""
    batch = algorithms.LatencyBatch(DECODE_CONTEXT)
    batch.add_chunk(num_tokens, num_new)
    for _ in range(num_decodes):
        batch.add_decode(DECODE_CONTEXT)
    return find_cost(shape, "a100").to_core().predict(batch.features)


def rows(names: Sequence[str], num_new: int, num_decodes: int) -> Iterator[tuple[str, ...]]:
    for name in names:
        shape = model_shape(name)
        num_groups = -(-shape.num_layers // LAYERS_PER_UNIT)
        for num_tokens in CONTEXTS:
            step = step_seconds(shape, num_tokens, num_new, num_decodes)
            copies = num_tokens * shape.kv_bytes_per_token / SimulatedEngine.HOST_BYTES_PER_SECOND
            for share in KEPT:
                by_blocks = stall(kept_by_blocks(share, num_groups), copies, step)
                by_layers = stall(kept_by_layers(share, num_groups), copies, step)
                yield (
                    name,
                    str(num_tokens),
                    f"{step * 1e3:.1f}",
                    f"{copies * 1e3:.1f}",
                    f"{share:.0%}",
                    f"{by_blocks * 1e3:.2f}",
                    f"{by_layers * 1e3:.2f}",
                    f"{(by_blocks - by_layers) / step:.1%}",
                )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["llama-3.1-8b", "opt-13b"])
    parser.add_argument("--decodes", type=int, default=32)
    parser.add_argument("--new-tokens", type=int, default=100)
    args = parser.parse_args()
    print(render(HEADER, list(rows(args.models, args.new_tokens, args.decodes))))


if __name__ == "__main__":
    main()

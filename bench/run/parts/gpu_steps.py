"""Whole steps of two models on a GPU, eager and recorded, against what the device allows.

    python -m bench.run.parts.gpu_steps [--device cuda|cpu] [--models qwen3-0.6b llama-3.1-8b] [--decodes 1 8 64 256]
                                       [--smoke]

Weights are random, of bfloat16 (float32 with --smoke), made on the device. A step is what the engine runs: plan,
forward, argmax, tokens on the host; the scheduler is not in it. Times are the best of some runs. limit: of a decode,
the bytes of weights and cache over the measured bandwidth; of a prefill, its FLOPs over the measured peak of large
products.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from bench.lib.model.random_decoder import make_decoder, num_layer_weights, num_streamed_weights
from bench.lib.table import render
from bench.run.parts.kernels import Bench
from schedcore.api.config import EngineConfig
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.calibration.step_shapes import Chunk, ShapeLimits, StepShape
from worker.calibration.step_timer import StepTimer
from worker.forward.step_inputs import apply_block_table_changes
from worker.forward.step_size import step_sizes
from worker.models.model_config import ModelConfig
from worker.runner.make_forward import make_forward
from worker.runner.memory import MemoryPlan, allocate_pool, plan_memory
from worker.runner.model_runner import ModelRunner


@dataclass(frozen=True)
class Scale:
    """What is measured, and how often."""

    dtype: torch.dtype
    decodes: tuple[int, ...]  # sequences
    beside: int  # of them, beside a prefill
    context: int  # tokens of each
    chunks: tuple[int, ...]  # tokens of a prefill, alone; the first also beside some decodes
    recorded: int  # tokens of the largest step that is
    repeats: int
    limit_bytes: int  # that are copied to measure the bandwidth
    limit_rows: int  # of the square matrices that are multiplied to measure the peak

    @property
    def max_num_seqs(self) -> int:
        return max(*self.decodes, self.beside + 1)


FULL = Scale(torch.bfloat16, (1, 8, 64, 256), 64, 1024, (128, 512, 2048), 512, 20, 1 << 30, 8192)
SMOKE = Scale(torch.float32, (1, 3), 2, 40, (24, 48), 32, 2, 1 << 20, 64)


@dataclass(frozen=True)
class Limits:
    bytes_per_second: float
    operations_per_second: float


class ModelBench:
    def __init__(self, name: str, scale: Scale, device: torch.device) -> None:
        self.name, self.scale, self._device = name, scale, device
        longest = max(scale.context, scale.chunks[-1]) + 1
        self._model, self.config = make_decoder(name, scale.dtype, device, longest)
        engine = EngineConfig(
            model=name, max_model_len=longest, max_num_seqs=scale.max_num_seqs, max_num_batched_tokens=scale.chunks[-1],
            cache_memory_bytes=self._cache_bytes(longest),
        )  # fmt: skip
        self._memory: MemoryPlan = plan_memory(engine, self.config, scale.dtype, 0)
        self._pool: PagedPool = allocate_pool(
            self._memory, engine, self.config, scale.dtype, device, has_padding_row=True
        )
        self._limits = ShapeLimits(
            scale.max_num_seqs, max(scale.chunks[-1], scale.max_num_seqs), longest,
            self._memory.num_units // self._memory.units_per_block, engine.block_size,
        )  # fmt: skip

    def step_seconds(self, shapes: Sequence[StepShape], *, has_graphs: bool) -> list[float]:
        sizes = step_sizes(max(self.scale.recorded, self.scale.max_num_seqs), self.scale.max_num_seqs)
        forward = make_forward(
            self._model, self._pool, max_num_seqs=self.scale.max_num_seqs, graph_sizes=sizes if has_graphs else ()
        )
        runner = ModelRunner(self._model, self._pool, max_num_seqs=self.scale.max_num_seqs, forward=forward)
        timer = StepTimer(
            runner,
            lambda plan: apply_block_table_changes(plan, self._pool),
            self._limits,
            num_layers=self.config.num_layers,
            layers_per_unit=self._memory.layers_per_unit,
            num_units=self._memory.num_units,
            vocab_size=self.config.vocab_size,
            clock=time.perf_counter,
        )
        return [min(timer.measure(shape, self.scale.repeats).execute_seconds) for shape in shapes]

    def _cache_bytes(self, longest: int) -> int:
        """For the largest step, with what the scheduler keeps free."""
        scale, tokens = self.scale, 64 + longest
        tokens += scale.max_num_seqs * (scale.context + 64)
        return 2 * (self.config.num_layers + 4) * self.config.kv_size * scale.dtype.itemsize * tokens


def shapes_of(scale: Scale) -> list[StepShape]:
    return [
        *(StepShape(decodes=(scale.context,) * n) for n in scale.decodes),
        *(StepShape(chunks=(Chunk(0, n),)) for n in scale.chunks),
        StepShape(decodes=(scale.context,) * scale.beside, chunks=(Chunk(0, scale.chunks[0]),)),
    ]


def limit_seconds(shape: StepShape, config: ModelConfig, dtype: torch.dtype, limits: Limits) -> float:
    pairs = sum(shape.decodes) + sum(chunk.tokens * (chunk.tokens + 1) // 2 for chunk in shape.chunks)
    cached = sum(shape.decodes) + sum(chunk.tokens for chunk in shape.chunks)
    num_bytes = (num_streamed_weights(config) + 2 * config.num_layers * config.kv_size * cached) * dtype.itemsize
    operations = 2 * shape.num_tokens * num_layer_weights(config)
    operations += 2 * shape.num_seqs * config.vocab_size * config.hidden_size
    operations += 4 * pairs * config.num_layers * config.num_heads * config.head_dim
    return max(num_bytes / limits.bytes_per_second, operations / limits.operations_per_second)


def name_of(shape: StepShape) -> str:
    parts = [f"decode {len(shape.decodes)} x {shape.decodes[0]}"] if shape.decodes else []
    return ", ".join(parts + [f"prefill {chunk.tokens}" for chunk in shape.chunks])


def is_recorded(shape: StepShape, scale: Scale) -> bool:
    return shape.num_tokens <= max(scale.recorded, scale.max_num_seqs)


def rows_of(bench: ModelBench, limits: Limits) -> Iterator[list[str]]:
    shapes = shapes_of(bench.scale)
    eager, recorded = (bench.step_seconds(shapes, has_graphs=has_graphs) for has_graphs in (False, True))
    for shape, without, seconds in zip(shapes, eager, recorded, strict=True):
        limit = limit_seconds(shape, bench.config, bench.scale.dtype, limits)
        best = min(without, seconds)
        yield [
            f"{bench.name} {name_of(shape)}",
            f"{without * 1e3:.3f}",
            f"{seconds * 1e3:.3f}" if is_recorded(shape, bench.scale) else "",
            f"{shape.num_tokens / best:.0f}",
            f"{limit * 1e3:.3f}",
            f"{limit / best:.0%}",
        ]


def measured_limits(scale: Scale, device: torch.device) -> Limits:
    """Of a pass over memory and of square products, by the library."""
    time_of: Callable[[Callable[[], object]], float] = Bench(device.type, scale.dtype, 0.01).time
    data = torch.rand(scale.limit_bytes // 4, device=device)
    to = torch.empty_like(data)
    a = torch.randn(scale.limit_rows, scale.limit_rows, dtype=scale.dtype, device=device)
    seconds = time_of(lambda: torch.neg(data, out=to)), time_of(lambda: a @ a)
    return Limits(2 * scale.limit_bytes / seconds[0], 2 * scale.limit_rows**3 / seconds[1])


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--models", nargs="*", default=["qwen3-0.6b", "llama-3.1-8b"])
    parser.add_argument("--decodes", type=int, nargs="*", help="sequences of the decode steps; fewer on small devices")
    parser.add_argument("--smoke", action="store_true", help="a tiny model, so that all of this is known to run")
    args = parser.parse_args(argv)
    scale, device = SMOKE if args.smoke else FULL, torch.device(args.device)
    if args.decodes:
        scale = replace(scale, decodes=tuple(sorted(args.decodes)))
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device; --device cpu --smoke shows that the code runs")
    limits = measured_limits(scale, device)
    print(
        f"{ops.backend(device)}, {scale.dtype}; copies {limits.bytes_per_second / 1e9:.0f} GB/s, "
        f"products {limits.operations_per_second / 1e12:.1f} TFLOP/s\n"
    )
    rows = []
    for name in ["tiny"] if args.smoke else args.models:
        rows += list(rows_of(ModelBench(name, scale, device), limits))
    print(render(["step", "eager ms", "graphs ms", "tokens/s", "limit ms", "of limit"], rows))


if __name__ == "__main__":
    main()

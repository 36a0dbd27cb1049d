"""Every kernel against the limit of this machine and against torch.

    python bench/kernels.py [--device cpu|cuda] [--threads 2] [--ops linear paged_attention] [--dtype bfloat16]

Times are the best of many runs, warm. `limit` is the larger share of the two that the machine allows: bytes moved over
the measured read bandwidth (of the caches where the data fits them, of memory otherwise), operations over the measured
arithmetic peak. On CPU activations are float32; dtype is the weights' and the pool's. torch: float32 on CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from table import render

from worker import _kernels, ops
from worker.unit_pool import StepBatch, UnitPool

CACHE_BYTES = 8 << 20  # data up to this size is taken to stay in the caches
MEMORY_BYTES = 512 << 20
LAYERS_PER_UNIT, BLOCK_SIZE = 4, 16
HEADS = {"15m": (8, 4, 32), "100m": (12, 12, 64), "0.5b": (14, 2, 64)}  # heads, KV heads, head_dim
LINEAR_SHAPES = [(256, 4096), (2048, 256), (256, 8192), (768, 2304), (768, 4096), (2048, 768)]  # in, out features
# sequences, query tokens of each, tokens before them
ATTENTION_BATCHES = [(1, 1, 256), (8, 1, 256), (64, 1, 256), (1, 1, 4000), (1, 128, 0), (1, 512, 0), (1, 512, 1024)]
LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64, 256)


@dataclass(frozen=True)
class Case:
    op: str
    shape: str
    run: Callable[[], object]
    num_bytes: int  # that must be moved at least
    num_operations: int
    torch_run: Callable[[], object] | None = None


@dataclass(frozen=True)
class Limits:
    cache_bandwidth: float  # bytes/s
    memory_bandwidth: float
    arithmetic: float  # float32 operations/s on CPU, bfloat16 on CUDA

    def share(self, case: Case, seconds: float) -> float:
        bandwidth = self.cache_bandwidth if case.num_bytes <= CACHE_BYTES else self.memory_bandwidth
        return max(case.num_bytes / bandwidth, case.num_operations / self.arithmetic) / seconds


class Bench:
    def __init__(self, device: str, dtype: torch.dtype, seconds: float) -> None:
        self.device = device
        self.dtype = dtype
        self.activation_dtype = torch.float32 if device == "cpu" else dtype
        self.seconds = seconds

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=self.activation_dtype, device=self.device)

    def time(self, run: Callable[[], object]) -> float:
        """Seconds of the fastest run; on CUDA the mean of runs queued back to back."""
        run()
        if self.device == "cuda":
            return self._time_queued(run)
        best, end = float("inf"), time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            start = time.perf_counter()
            run()
            best = min(best, time.perf_counter() - start)
        return best

    def _time_queued(self, run: Callable[[], object], num_runs: int = 100) -> float:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(num_runs):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / num_runs

    def limits(self) -> Limits:
        if self.device == "cuda":
            a, big = self.randn(8192, 8192), torch.empty(MEMORY_BYTES, dtype=torch.uint8, device="cuda")
            copy = 2 * MEMORY_BYTES / self.time(big.clone)
            return Limits(copy, copy, 2 * 8192**3 / self.time(lambda: a @ a))
        small, big = torch.zeros(CACHE_BYTES // 4), torch.zeros(MEMORY_BYTES // 4)
        rounds = 200_000
        num_operations = _kernels.arithmetic_limit(rounds)
        return Limits(
            CACHE_BYTES / self.time(lambda: _kernels.read_limit(small.data_ptr(), CACHE_BYTES)),
            MEMORY_BYTES / self.time(lambda: _kernels.read_limit(big.data_ptr(), MEMORY_BYTES)),
            num_operations / self.time(lambda: _kernels.arithmetic_limit(rounds)),
        )

    def rms_norm(self) -> Iterator[Case]:
        for tokens, hidden in ((1, 256), (1, 896), (64, 768), (512, 896)):
            x, residual, weight = self.randn(tokens, hidden), self.randn(tokens, hidden), self.randn(hidden)
            size = tokens * hidden * x.element_size()
            yield Case(
                "rms_norm", f"{tokens}x{hidden}",
                lambda x=x, weight=weight: ops.rms_norm(x, weight, 1e-5), 2 * size, 4 * tokens * hidden,
                lambda x=x, weight=weight: F.rms_norm(x, weight.shape, weight, 1e-5),
            )  # fmt: skip
            yield Case(
                "add_rms_norm", f"{tokens}x{hidden}",
                lambda x=x, r=residual, weight=weight: ops.add_rms_norm(x, r, weight, 1e-5), 4 * size,
                5 * tokens * hidden,
                lambda x=x, r=residual, weight=weight: F.rms_norm(r.add_(x), weight.shape, weight, 1e-5),
            )  # fmt: skip

    def silu_mul(self) -> Iterator[Case]:
        for tokens, width in ((1, 2048), (8, 2048), (64, 2048), (64, 4864), (512, 4864)):
            gate_up = self.randn(tokens, 2 * width)
            size = tokens * width * gate_up.element_size()
            yield Case(
                "silu_mul", f"{tokens}x{width}",
                lambda g=gate_up: ops.silu_mul(g), 3 * size, 20 * tokens * width,
                lambda g=gate_up, w=width: F.silu(g[:, :w]) * g[:, w:],
            )  # fmt: skip

    def rope_kv_write(self) -> Iterator[Case]:
        for model, (heads, kv_heads, head_dim) in HEADS.items():
            for num_seqs, num_queries in ((1, 1), (64, 1), (1, 512)):
                batch, pool = self.paged(num_seqs, num_queries, num_queries + 256, kv_heads, head_dim)
                tokens = num_seqs * num_queries
                qkv = self.randn(tokens, heads + 2 * kv_heads, head_dim)
                q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
                table = torch.rand(4096, head_dim, device=self.device)
                written = 2 * tokens * kv_heads * head_dim * pool.data.element_size()
                rotated = tokens * (heads + kv_heads) * head_dim
                yield Case(
                    "rope_kv_write", f"{model} {num_seqs}x{num_queries}",
                    lambda q=q, k=k, v=v, table=table, batch=batch, pool=pool: ops.rope_kv_write(
                        q, k, v, table, batch, pool, 0
                    ),
                    2 * qkv.numel() * qkv.element_size() + written, 6 * rotated,
                )  # fmt: skip

    def paged_attention(self) -> Iterator[Case]:
        for model, (heads, kv_heads, head_dim) in HEADS.items():
            for num_seqs, num_queries, past in (
                (1, 1, 256), (8, 1, 256), (64, 1, 256), (1, 1, 4000), (64, 1, 1000),
                (1, 128, 0), (1, 512, 0), (1, 512, 1024),
            ):  # fmt: skip
                batch, pool = self.paged(num_seqs, num_queries, num_queries + past, kv_heads, head_dim)
                q = self.randn(num_seqs * num_queries, heads, head_dim)
                cache = num_seqs * (num_queries + past) * 2 * kv_heads * head_dim * pool.data.element_size()
                pairs = num_seqs * (num_queries * past + num_queries * (num_queries + 1) // 2)
                yield Case(
                    "paged_attention", f"{model} {num_seqs}x{num_queries} after {past}",
                    lambda q=q, batch=batch, pool=pool: ops.paged_attention(q, batch, pool, 0, 0.1),
                    cache + 2 * q.numel() * q.element_size(), 4 * pairs * heads * head_dim,
                    self.torch_attention(q, num_seqs, num_queries + past, kv_heads),
                )  # fmt: skip

    def linear(self) -> Iterator[Case]:
        for in_features, out_features in LINEAR_SHAPES:
            weight = torch.randn(out_features, in_features, device=self.device).to(self.dtype)
            packed, full = ops.pack_linear(weight), weight.to(self.activation_dtype)
            for rows in LINEAR_ROWS:
                x = self.randn(rows, in_features)
                num_bytes = (
                    weight.numel() * weight.element_size() + rows * (in_features + out_features) * x.element_size()
                )
                yield Case(
                    "linear", f"{rows} x {in_features}x{out_features}",
                    lambda x=x, packed=packed: ops.linear(x, packed), num_bytes, 2 * rows * weight.numel(),
                    lambda x=x, full=full: F.linear(x, full),
                )  # fmt: skip

    def paged(
        self, num_seqs: int, num_queries: int, seq_len: int, kv_heads: int, head_dim: int
    ) -> tuple[StepBatch, UnitPool]:
        blocks = -(-seq_len // BLOCK_SIZE)
        units = torch.randperm(num_seqs * 2 * blocks, dtype=torch.int32).view(num_seqs, 1, 2, blocks)
        data = torch.randn(units.numel(), 1, BLOCK_SIZE, kv_heads * head_dim).to(self.dtype)
        data = data.expand(-1, LAYERS_PER_UNIT, -1, -1).contiguous()
        pool = UnitPool(data.to(self.device), units.to(self.device), kv_heads, head_dim)

        def ints(values: torch.Tensor) -> torch.Tensor:
            return values.to(torch.int32).contiguous().to(self.device)

        rows = torch.arange(num_seqs)
        positions = torch.arange(seq_len - num_queries, seq_len).repeat(num_seqs)
        batch = StepBatch(
            token_ids=ints(positions),
            positions=ints(positions),
            token_row=ints(rows.repeat_interleave(num_queries)),
            query_start=ints(torch.arange(num_seqs + 1) * num_queries),
            seq_lens=ints(torch.full((num_seqs,), seq_len)),
            rows=ints(rows),
            sample_tokens=rows.to(self.device),
            max_query_len=num_queries,
            max_seq_len=seq_len,
        )
        return batch, pool

    def torch_attention(self, q: torch.Tensor, num_seqs: int, seq_len: int, kv_heads: int) -> Callable[[], object]:
        """On dense tensors that somebody else has gathered."""
        heads, head_dim = q.shape[1:]
        query = q.view(num_seqs, -1, heads, head_dim).transpose(1, 2)
        k, v = self.randn(2, num_seqs, kv_heads, seq_len, head_dim)
        past = seq_len - query.shape[2]
        mask = torch.ones(query.shape[2], seq_len, dtype=torch.bool, device=self.device).tril(past)
        return lambda: F.scaled_dot_product_attention(query, k, v, attn_mask=mask, enable_gqa=True)


OPS = ("rms_norm", "silu_mul", "rope_kv_write", "paged_attention", "linear")


def row(case: Case, bench: Bench, limits: Limits) -> list[str]:
    seconds = bench.time(case.run)
    torch_seconds = bench.time(case.torch_run) if case.torch_run else None
    return [
        f"{case.op} {case.shape}",
        f"{seconds * 1e6:.1f}",
        "" if torch_seconds is None else f"{torch_seconds * 1e6:.1f}",
        f"{case.num_bytes / seconds / 1e9:.1f}",
        f"{case.num_operations / seconds / 1e9:.1f}",
        f"{limits.share(case, seconds):.0%}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--ops", nargs="*", choices=OPS, default=OPS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long each case is repeated (CPU)")
    args = parser.parse_args()
    ops.set_num_threads(args.threads)
    torch.set_num_threads(args.threads)  # for the library's times
    bench = Bench(args.device, getattr(torch, args.dtype), args.seconds)
    limits = bench.limits()
    print(f"{ops.backend(torch.device(args.device))}, {args.threads} threads, {args.dtype}")
    print(
        f"limits: read {limits.cache_bandwidth / 1e9:.0f} GB/s from cache, {limits.memory_bandwidth / 1e9:.0f} GB/s "
        f"from memory; {limits.arithmetic / 1e9:.0f} GFLOP/s\n"
    )
    for op in args.ops:
        rows = [row(case, bench, limits) for case in getattr(bench, op)()]
        print(render(["op", "us", "torch us", "GB/s", "GFLOP/s", "of limit"], rows) + "\n")


if __name__ == "__main__":
    main()

"""Every kernel against the limit of this machine and against torch.

    python -m bench.run.parts.kernels [--device cpu|cuda] [--threads 2] [--ops linear paged_attention]
                                     [--dtype bfloat16]

Times are the best of many runs, warm. `limit` is the larger share of the two that the machine allows: bytes moved over
the measured read bandwidth (of the caches where the data fits them, of memory otherwise), operations over the measured
arithmetic peak of what is multiplied. On CPU activations are float32; dtype is the weights' and the pool's. torch:
float32 on CPU, but `linear` all in dtype. On CUDA runs are recorded in a graph, so that no launch is in the times;
`linear` is the library's, and `draw_tokens`, not recorded, includes the way of the tokens to the host.

`linear` has the shapes of the models of random_model.py, and reads a new weight each time, of as many as the model has,
so that they come from where they come in a step: 15m from the last cache, the others from memory. Its read limit is
measured on as many bytes. `quantized` is the same with the weights rounded as `hocket serve --quantization` does (CPU).
`int8_cache` is `rope_kv_write` and `paged_attention` with K and V in int8 (CPU). `shared_keys` is `paged_attention` of
decodes over one document, read once for all and by each for itself (CPU); its bytes are those of the latter.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from bench.lib.model.paged_batch import make_paged_batch
from bench.lib.model.random_model import SHAPES, LlamaShape
from bench.lib.table import render
from bench.run.parts.kernel_limits import LLAMA, QWEN, Model
from worker import _kernels, ops
from worker.batch.host_memory import HugePageMemory
from worker.batch.paged_pool import PagedPool, StepBatch, StoredTokens
from worker.ops import reference
from worker.ops.draw import DrawParameters

CACHE_BYTES = 8 << 20  # data up to this size is taken to stay in the caches
MEMORY_BYTES = 512 << 20
PIECE_BYTES = 4 << 20  # of a read that is timed: short, so that some go undisturbed
MAX_MODEL_BYTES = 192 << 20  # of weights that are read in turn: far more than the caches hold
HEADS = {"15m": (8, 4, 32), "100m": (12, 12, 64), "0.5b": (14, 2, 64)}  # heads, KV heads, head_dim
GPU_HEADS = {"qwen3-0.6b": (16, 8, 128), "llama-3.1-8b": (32, 8, 128)}
# hidden size, KV heads, head_dim of models whose hidden states take half the memory of K and V
HIDDEN = {"100m": (768, 12, 64), "qwen3-0.6b": (1024, 8, 128)}
GPU_HIDDEN = {**HIDDEN, "llama-2-7b": (4096, 32, 128)}
LINEAR_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
GPU_MODELS = (QWEN, LLAMA)
SMOKE_HEADS, SMOKE_HIDDEN = {"tiny": (4, 2, 32)}, {"tiny": (64, 2, 32)}
SMOKE_SHAPES = {"tiny": LlamaShape(64, 2, 2, 2, 96, 256)}

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    op: str
    shape: str
    run: Run | Sequence[Run]  # several: the same on other data, in turn
    num_bytes: int  # that must be moved at least
    num_operations: int
    torch_run: Run | Sequence[Run] | None = None
    multiplies: torch.dtype = torch.float32
    footprint: int = 0  # bytes that are touched in turn; 0: num_bytes
    waits: bool = False  # the host waits for the result


class Limits:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._read: dict[int, float] = {}
        self._arithmetic: dict[torch.dtype, float] = {}

    def read(self, num_bytes: int) -> float:
        """Bytes/s, on data of that size."""
        if num_bytes not in self._read:
            self._read[num_bytes] = self._bench.read_limit(num_bytes)
        return self._read[num_bytes]

    def arithmetic(self, dtype: torch.dtype) -> float:
        """Operations/s."""
        if dtype not in self._arithmetic:
            self._arithmetic[dtype] = self._bench.arithmetic_limit(dtype)
        return self._arithmetic[dtype]

    def share(self, case: Case, seconds: float) -> float:
        size = case.footprint or (CACHE_BYTES if case.num_bytes <= CACHE_BYTES else MEMORY_BYTES)
        return max(case.num_bytes / self.read(size), case.num_operations / self.arithmetic(case.multiplies)) / seconds


class Bench:
    def __init__(self, device: str, dtype: torch.dtype, seconds: float, *, is_smoke: bool = False) -> None:
        """is_smoke: small shapes, few runs, to see that all of it works."""
        self.device = device
        self.dtype = self.pool_dtype = dtype
        self.activation_dtype = torch.float32 if device == "cpu" else dtype
        self.seconds, self.is_smoke = 0.0 if is_smoke else seconds, is_smoke
        self.heads, self.hidden_heads = (HEADS, HIDDEN) if device == "cpu" else (GPU_HEADS, GPU_HIDDEN)
        self.rows_and_sizes = [(1, 256), (1, 896), (64, 768), (512, 896)]
        self.rows_and_widths = [(1, 2048), (8, 2048), (64, 2048), (64, 4864), (512, 4864)]
        if device == "cuda":
            self.rows_and_sizes = [(rows, model.hidden) for model in GPU_MODELS for rows in (1, 64, 2048)]
            self.rows_and_widths = [(rows, model.inner) for model in GPU_MODELS for rows in (1, 64, 2048)]
        if is_smoke:
            self.heads, self.hidden_heads = SMOKE_HEADS, SMOKE_HIDDEN
            self.rows_and_sizes = self.rows_and_widths = [(3, 64)]

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=self.activation_dtype, device=self.device)

    def time(self, run: Run | Sequence[Run], *, waits: bool = False) -> float:
        """Seconds of the fastest run, where several take turns of all; on CUDA the mean of runs back to back.

        waits: the host waits for the result; else CUDA's runs are recorded, so that launches cost nothing.
        """
        runs = run if isinstance(run, Sequence) else [run]
        if self.device == "cuda":
            return self._time_queued(runs) if waits else self._time_recorded(runs)
        for run_one in runs:
            run_one()
        best, end = float("inf"), time.perf_counter() + self.seconds
        while best == float("inf") or time.perf_counter() < end:
            for run_one in runs:
                start = time.perf_counter()
                run_one()
                best = min(best, time.perf_counter() - start)
        return best

    def _time_recorded(self, runs: Sequence[Run]) -> float:
        """Each run at least once, some dozens of runs in a graph."""
        num_runs = max(len(runs), 3 if self.is_smoke else 24)
        for run in runs:
            run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(num_runs):
                runs[i % len(runs)]()
        seconds = self._time_queued([graph.replay], 3 if self.is_smoke else 10) / num_runs
        graph.reset()
        return seconds

    def _time_queued(self, runs: Sequence[Run], num_runs: int = 0) -> float:
        num_runs = num_runs or (3 if self.is_smoke else 100)
        for run in runs:
            run()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for i in range(num_runs):
            runs[i % len(runs)]()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / num_runs

    def read_limit(self, num_bytes: int) -> float:
        if self.device == "cuda":
            data = torch.rand(num_bytes // 4, device="cuda")
            to = torch.empty_like(data)
            return 2 * num_bytes / self.time(lambda: torch.neg(data, out=to))  # a kernel: copies are slower
        data = HugePageMemory().empty((num_bytes // 4,), torch.float32).zero_()
        pieces = data.split(PIECE_BYTES // 4)
        seconds = self.time([lambda p=p: _kernels.read_limit(p.data_ptr(), PIECE_BYTES) for p in pieces])
        return PIECE_BYTES / seconds

    def arithmetic_limit(self, dtype: torch.dtype) -> float:
        if self.device == "cuda":
            size = 256 if self.is_smoke else 8192
            a = torch.randn(size, size, dtype=dtype, device="cuda")
            return 2 * size**3 / self.time(lambda: a @ a)
        rounds, code = 20_000, {torch.float32: 0, torch.bfloat16: 1, torch.int8: 4}[dtype]
        return _kernels.arithmetic_limit(rounds, code) / self.time(lambda: _kernels.arithmetic_limit(rounds, code))

    def rms_norm(self) -> Iterator[Case]:
        for tokens, hidden in self.rows_and_sizes:
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
        for tokens, width in self.rows_and_widths:
            gate_up = self.randn(tokens, 2 * width)
            size = tokens * width * gate_up.element_size()
            yield Case(
                "silu_mul", f"{tokens}x{width}",
                lambda g=gate_up: ops.silu_mul(g), 3 * size, 20 * tokens * width,
                lambda g=gate_up, w=width: F.silu(g[:, :w]) * g[:, w:],
            )  # fmt: skip

    def rope_kv_write(self) -> Iterator[Case]:
        for model, (heads, kv_heads, head_dim) in self.heads.items():
            for num_seqs, num_queries in self.few((1, 1), (64, 1), (1, 512)):
                batch, pool = self.paged(num_seqs, num_queries, num_queries + 256, kv_heads, head_dim)
                tokens = num_seqs * num_queries
                qkv = self.randn(tokens, heads + 2 * kv_heads, head_dim)
                q, k, v = qkv.split((heads, kv_heads, kv_heads), dim=1)
                table = torch.rand(4096, head_dim, device=self.device)
                written = 2 * tokens * kv_heads * head_dim * pool.data.element_size()
                rotated = tokens * (heads + kv_heads) * head_dim
                has_norms = model.startswith("qwen3")
                norms = ops.HeadNorms(self.randn(head_dim), self.randn(head_dim), 1e-6) if has_norms else None
                yield Case(
                    "rope_kv_write", f"{model} {num_seqs}x{num_queries}{', normed' if has_norms else ''}",
                    lambda q=q, k=k, v=v, table=table, batch=batch, pool=pool, norms=norms: ops.rope_kv_write(
                        q, k, v, table, batch, pool, 0, norms
                    ),
                    2 * qkv.numel() * qkv.element_size() + written, (10 if has_norms else 6) * rotated,
                )  # fmt: skip

    def paged_attention(self) -> Iterator[Case]:
        for model, (heads, kv_heads, head_dim) in self.heads.items():
            for num_seqs, num_queries, past in self.few(
                (1, 1, 256), (1, 128, 0), (8, 1, 256), (64, 1, 256), (1, 1, 4000), (64, 1, 1000),
                (1, 512, 0), (1, 512, 1024), *(((1, 2048, 0), (256, 1, 1023)) if self.device == "cuda" else ()),
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
                    self.activation_dtype,
                )  # fmt: skip

    def shared_keys(self) -> Iterator[Case]:
        if self.device != "cpu":
            return
        document, own = 1472, 48
        for model, (heads, kv_heads, head_dim) in self.heads.items():
            for num_seqs in self.few(4, 8, 16, 32, 64):
                sequences = [(1, document + own)] * num_seqs
                batch, pool = make_paged_batch(sequences, kv_heads, head_dim, self.pool_dtype, self.device, document)
                q = self.randn(num_seqs, heads, head_dim)
                keys = num_seqs * (document + own)

                def attend(
                    is_shared: bool, q: torch.Tensor = q, batch: StepBatch = batch, pool: PagedPool = pool
                ) -> None:
                    _kernels.set_shared_keys(is_shared)
                    ops.paged_attention(q, batch, pool, 0, 0.1)
                    _kernels.set_shared_keys(True)

                for is_shared, name in ((True, "once"), (False, "each")):
                    yield Case(
                        "paged_attention", f"{model} {num_seqs}x1 after {document}, read {name}",
                        lambda attend=attend, is_shared=is_shared: attend(is_shared),
                        keys * 2 * kv_heads * head_dim * pool.data.element_size(), 4 * keys * heads * head_dim, None,
                        self.activation_dtype,
                    )  # fmt: skip

    def int8_cache(self) -> Iterator[Case]:
        if self.device != "cpu":
            return
        before, self.pool_dtype = self.pool_dtype, torch.int8
        for case in (*self.rope_kv_write(), *self.paged_attention()):
            yield replace(case, shape=f"{case.shape}, int8")
        self.pool_dtype = before

    def hidden(self) -> Iterator[Case]:
        """hidden_write of a step's tokens, hidden_gather and project_rope_write of those that it reads."""
        for model, (hidden, kv_heads, head_dim) in self.hidden_heads.items():
            for num_seqs, seq_len in self.few((1, 256), (4 if self.device == "cpu" else 64, 256)):
                batch, pool = self.paged(num_seqs, seq_len, seq_len, kv_heads, head_dim)
                tokens = StoredTokens(batch.token_row, batch.positions)
                count = num_seqs * seq_len
                x, kv = self.randn(count, hidden), self.randn(count, 2 * kv_heads, head_dim)
                norm, table = self.randn(head_dim), torch.rand(4096, head_dim, device=self.device)
                moved = count * hidden * (x.element_size() + pool.data.element_size())
                yield Case(
                    "hidden_write", f"{model} {num_seqs}x{seq_len}",
                    lambda x=x, tokens=tokens, pool=pool: ops.hidden_write(x, tokens, pool, 0), moved, 0,
                )  # fmt: skip
                yield Case(
                    "hidden_gather", f"{model} {num_seqs}x{seq_len}",
                    lambda h=hidden, tokens=tokens, pool=pool: ops.hidden_gather(tokens, pool, 0, h), moved, 0,
                )  # fmt: skip
                yield Case(
                    "project_rope_write", f"{model} {num_seqs}x{seq_len}",
                    lambda kv=kv, n=kv_heads, norm=norm, table=table, tokens=tokens, pool=pool: ops.project_rope_write(
                        kv[:, :n], kv[:, n:], norm, 1e-6, table, tokens, pool, 0
                    ),
                    kv.numel() * (kv.element_size() + pool.data.element_size()), 5 * kv.numel(),
                )  # fmt: skip

    def unit_copy(self) -> Iterator[Case]:
        for model, (_, kv_heads, head_dim) in self.hidden_heads.items():
            _, pool = self.paged(8 if self.is_smoke else 64, 1, 256, kv_heads, head_dim)
            for count in self.few(16, 256):
                units = torch.randperm(len(pool.data))[:count].to(torch.int32).to(self.device)
                staged = torch.empty_like(pool.data[:count])
                longs = units.long()
                yield Case(
                    "unit_copy", f"{model} {count} units of {staged[0].nbytes >> 10} KiB",
                    lambda s=staged, p=pool.data, u=units: ops.unit_copy(s, p, None, u), 2 * staged.nbytes, 0,
                    lambda s=staged, p=pool.data, u=longs: torch.index_select(p, 0, u, out=s),
                )  # fmt: skip

    def draw_tokens(self) -> Iterator[Case]:
        for rows, vocab_size in [(3, 256)] if self.is_smoke else ((1, 32_000), (64, 32_000), (64, 151_936)):
            logits = torch.randn(rows, vocab_size, device=self.device) * 3
            for name, top_k, top_p in (("plain", 0, 1.0), ("top-k 50", 50, 1.0), ("top-k 50, top-p 0.9", 50, 0.9)):
                floats, ints = np.ones(rows, dtype=np.float32), np.zeros(rows, dtype=np.int64)
                p = DrawParameters(
                    floats, ints + top_k, floats * np.float32(top_p), 0 * floats, ints.astype(np.uint64), ints
                )
                yield Case(
                    "draw_tokens", f"{rows}x{vocab_size} {name}", lambda logits=logits, p=p: ops.draw_tokens(logits, p),
                    logits.nbytes, 0,
                    lambda logits=logits, p=p: reference.draw_tokens(
                        logits, p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index
                    ),
                    waits=True,
                )  # fmt: skip

    def linear(self) -> Iterator[Case]:
        if self.device == "cuda" and not self.is_smoke:
            for gpu_model in GPU_MODELS:
                for name, in_features, out_features in gpu_linear_shapes(gpu_model):
                    yield from self.linear_rows(f"{gpu_model.name} {name}", in_features, out_features, MAX_MODEL_BYTES)
            return
        for model, shape in (SMOKE_SHAPES if self.is_smoke else SHAPES).items():
            model_bytes = min(shape.num_parameters() * self.dtype.itemsize, MAX_MODEL_BYTES)
            for name, in_features, out_features in linear_shapes(shape):
                yield from self.linear_rows(f"{model} {name}", in_features, out_features, model_bytes)

    def gemv(self) -> Iterator[Case]:
        """Against the library's product, gated against it and silu_mul()."""
        if self.device == "cpu" and not self.is_smoke:
            return
        models = () if self.device != "cuda" or self.is_smoke else GPU_MODELS
        shapes = [(f"{m.name} {name}", k, n) for m in models for name, k, n in gpu_linear_shapes(m)]
        for name, in_features, out_features in shapes or [("tiny gate_up", 64, 96)]:
            weight = self.randn(out_features, in_features)
            weight_bytes, is_gated = weight.numel() * weight.element_size(), name.endswith("gate_up")
            copies = [weight.clone() for _ in range(1 if self.is_smoke else -(-MAX_MODEL_BYTES // weight_bytes))]
            for rows in self.few(1, 2, 4):
                x = self.randn(rows, in_features)
                yield Case(
                    "gemv", f"{name} {rows} x {in_features}x{out_features}",
                    [lambda x=x, w=w, g=is_gated: ops.gemv(x, w, is_gated=g) for w in copies],
                    weight_bytes, 2 * rows * weight.numel(),
                    [lambda x=x, w=w, g=is_gated: library_product(x, w, g) for w in copies],
                    self.activation_dtype, MAX_MODEL_BYTES,
                )  # fmt: skip

    def quantized(self) -> Iterator[Case]:
        if self.device == "cuda":
            return
        shapes = SMOKE_SHAPES if self.is_smoke else {"100m": SHAPES["100m"]}
        for quantization, bits in (("int8-weights", 8.0), ("int8", 8.25), ("int4", 4.25)):
            for model, shape in shapes.items():
                model_bytes = min(int(shape.num_parameters() * bits / 8), MAX_MODEL_BYTES)
                for name, in_features, out_features in linear_shapes(shape):
                    yield from self.quantized_rows(
                        f"{quantization} {model} {name}", in_features, out_features, model_bytes, quantization
                    )

    def quantized_rows(
        self, name: str, in_features: int, out_features: int, model_bytes: int, quantization: str
    ) -> Iterator[Case]:
        weight = torch.randn(out_features, in_features)
        memory, is_gated = HugePageMemory(), name.endswith("gate_up")
        first = ops.pack_linear(weight, is_gated=is_gated, quantization=quantization, memory=memory)
        weight_bytes = first.weight.numel() * first.weight.element_size()
        packed = [first]
        while len(packed) * weight_bytes < model_bytes:
            packed.append(ops.pack_linear(weight, is_gated=is_gated, quantization=quantization, memory=memory))
        multiplies = torch.int8
        if quantization == "int8-weights":
            multiplies = torch.bfloat16 if _kernels.isa() in ("avx512_bf16", "avx512_amx") else torch.float32
        for rows in self.few(*LINEAR_ROWS):
            x = self.randn(rows, in_features)
            yield Case(
                "linear", f"{name} {rows} x {in_features}x{out_features}",
                [lambda x=x, p=p: ops.linear(x, p) for p in packed],
                weight_bytes + rows * (in_features + out_features // (2 if is_gated else 1)) * x.element_size(),
                2 * rows * weight.numel(), None, multiplies, model_bytes,
            )  # fmt: skip

    def linear_rows(self, name: str, in_features: int, out_features: int, model_bytes: int) -> Iterator[Case]:
        weight = torch.randn(out_features, in_features, device=self.device).to(self.dtype)
        weight_bytes = weight.numel() * weight.element_size()
        copies, memory = range(-(-model_bytes // weight_bytes)), HugePageMemory()
        is_gated = name.endswith("gate_up")
        packed = [ops.pack_linear(weight, is_gated=is_gated, memory=memory) for _ in copies]
        plain = [weight.clone() for _ in copies]
        is_bfloat16 = self.device == "cuda" or (
            _kernels.isa() in ("avx512_bf16", "avx512_amx") and self.dtype is torch.bfloat16
        )
        for rows in self.few(*LINEAR_ROWS):
            x = self.randn(rows, in_features)
            plain_x = x.to(self.dtype)
            yield Case(
                "linear", f"{name} {rows} x {in_features}x{out_features}",
                [lambda x=x, p=p: ops.linear(x, p) for p in packed],
                weight_bytes + rows * (in_features + out_features // (2 if is_gated else 1)) * x.element_size(),
                2 * rows * weight.numel(),
                [lambda x=plain_x, w=w: F.linear(x, w) for w in plain],
                torch.bfloat16 if is_bfloat16 else torch.float32,
                model_bytes,
            )  # fmt: skip

    def paged(
        self, num_seqs: int, num_queries: int, seq_len: int, kv_heads: int, head_dim: int
    ) -> tuple[StepBatch, PagedPool]:
        return make_paged_batch([(num_queries, seq_len)] * num_seqs, kv_heads, head_dim, self.pool_dtype, self.device)

    def torch_attention(self, q: torch.Tensor, num_seqs: int, seq_len: int, kv_heads: int) -> Callable[[], object]:
        """On dense tensors that somebody else has gathered; without a mask where the library needs none."""
        heads, head_dim = q.shape[1:]
        query = q.view(num_seqs, -1, heads, head_dim).transpose(1, 2)
        k, v = self.randn(2, num_seqs, kv_heads, seq_len, head_dim)
        num_queries, past = query.shape[2], seq_len - query.shape[2]
        is_causal = past == 0 and num_queries > 1
        mask = None
        if num_queries > 1 and not is_causal:
            mask = torch.ones(num_queries, seq_len, dtype=torch.bool, device=self.device).tril(past)
        return lambda: F.scaled_dot_product_attention(query, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=True)

    def few(self, *sizes: Any) -> Sequence[Any]:
        return sizes[:2] if self.is_smoke else sizes


def linear_shapes(shape: LlamaShape) -> Iterator[tuple[str, int, int]]:
    """Name, in and out features of the products of one layer and of the head."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    yield "qkv", hidden, hidden + 2 * shape.num_kv_heads * shape.head_dim
    yield "o", hidden, hidden
    yield "gate_up", hidden, 2 * inner
    yield "down", inner, hidden
    yield "lm_head", hidden, shape.vocab_size


def library_product(x: torch.Tensor, weight: torch.Tensor, is_gated: bool) -> torch.Tensor:
    product = F.linear(x, weight)
    return ops.silu_mul(product) if is_gated else product


def gpu_linear_shapes(model: Model) -> Iterator[tuple[str, int, int]]:
    """The same of models whose heads together are not as wide as the hidden size."""
    query_size = model.heads * model.head_dim
    yield "qkv", model.hidden, query_size + 2 * model.kv_size
    yield "o", query_size, model.hidden
    yield "gate_up", model.hidden, 2 * model.inner
    yield "down", model.inner, model.hidden
    yield "lm_head", model.hidden, model.vocab


OPS = (
    "rms_norm",
    "silu_mul",
    "gemv",
    "rope_kv_write",
    "paged_attention",
    "int8_cache",
    "shared_keys",
    "hidden",
    "unit_copy",
    "draw_tokens",
    "linear",
    "quantized",
)


def spread_threads() -> None:
    """The caller on the first CPU, all other threads of both libraries on the others.

    Where other programs run too, Linux likes to put a thread that wakes beside the one that woke it.
    """
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cpus[1:] or cpus)
    a = torch.ones(512, 512)
    ops.linear(a, ops.pack_linear(a))  # threads inherit the CPUs of the one that starts them
    F.linear(a, a)
    os.sched_setaffinity(0, cpus[:1])


def row(case: Case, bench: Bench, limits: Limits) -> list[str]:
    seconds = bench.time(case.run, waits=case.waits)
    torch_seconds = bench.time(case.torch_run, waits=case.waits) if case.torch_run else None
    return [
        f"{case.op} {case.shape}",
        f"{seconds * 1e6:.1f}",
        "" if torch_seconds is None else f"{torch_seconds * 1e6:.1f}",
        f"{case.num_bytes / seconds / 1e9:.1f}",
        f"{case.num_operations / seconds / 1e9:.1f}",
        f"{limits.share(case, seconds):.0%}",
    ]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--isa", default=_kernels.isa(), help="of the CPU: avx512_amx, avx512_bf16, avx2, ...")
    parser.add_argument("--ops", nargs="*", choices=OPS, default=OPS)
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--seconds", type=float, default=0.1, help="how long each case is repeated (CPU)")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, so that all of this is known to run")
    args = parser.parse_args(argv)
    if args.device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("there is no CUDA device; --device cpu --smoke shows that the code runs")
    _kernels.set_isa(args.isa)
    if not args.smoke:
        ops.set_num_threads(args.threads)
        torch.set_num_threads(args.threads)  # for the library's times
        if args.device == "cpu" and args.threads > 1:
            spread_threads()
    bench = Bench(args.device, getattr(torch, args.dtype), args.seconds, is_smoke=args.smoke)
    limits = Limits(bench)
    print(f"{ops.backend(torch.device(args.device))}, {args.threads} threads, {args.dtype}")
    cache, memory = (limits.read(size) / 1e9 for size in (CACHE_BYTES, MEMORY_BYTES))
    dtypes = [torch.float32, torch.bfloat16, *([torch.int8] if args.device == "cpu" else [])]
    arithmetic = ", ".join(
        f"{limits.arithmetic(dtype) / 1e9:.0f} in {str(dtype).removeprefix('torch.')}" for dtype in dtypes
    )
    print(f"limits: read {cache:.0f} GB/s from cache, {memory:.0f} GB/s from memory; GFLOP/s {arithmetic}\n")
    for op in args.ops:
        rows = [row(case, bench, limits) for case in getattr(bench, op)()]
        if rows:
            print(render(["op", "us", "torch us", "GB/s", "GFLOP/s", "of limit"], rows) + "\n")


if __name__ == "__main__":
    main()

"""What each CUDA kernel must move and compute at the shapes of two models, and how long that takes at the least.

    python -m bench.run.parts.kernel_limits

Arithmetic only: nothing runs. Bytes are those that must come from or go to memory once; FLOPs those that the result
needs; the limit is the longer of the two at the device's peaks (bytes, FLOPs of bfloat16 on tensor cores).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from bench.lib.table import render

DEVICES = {"A100": (2.04e12, 312e12), "H100": (3.35e12, 989e12), "H200": (4.8e12, 989e12)}  # bytes/s, FLOP/s
ELEMENT = 2  # bytes of bfloat16
BLOCK_SIZE, LAYERS_PER_UNIT = 16, 4
DECODES, CONTEXT = 64, 1024  # sequences of a decode step, tokens of each
CHUNK = 2048  # tokens of a prefill step


@dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocab: int

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim


QWEN = Model("Qwen3-0.6B", 1024, 16, 8, 128, 3072, 151_936)
LLAMA = Model("Llama-3.1-8B", 4096, 32, 8, 128, 14_336, 128_256)
LLAMA_MHA = Model("Llama-2-7B", 4096, 32, 32, 128, 11_008, 32_000)


@dataclass(frozen=True)
class Work:
    kernel: str
    shape: str
    num_bytes: float
    num_operations: float

    def limits_us(self) -> list[str]:
        return [
            f"{1e6 * max(self.num_bytes / read, self.num_operations / arithmetic):.1f}"
            for read, arithmetic in DEVICES.values()
        ]


def rows_of(model: Model, tokens: int, name: str) -> Iterator[Work]:
    """The kernels that see every token of a step alike."""
    hidden, heads, kv_size = model.hidden, model.heads * model.head_dim, model.kv_size
    yield Work("rms_norm, with residual", name, 4 * tokens * hidden * ELEMENT, 5 * tokens * hidden)
    yield Work("silu_mul", name, 3 * tokens * model.inner * ELEMENT, 8 * tokens * model.inner)
    moved = 2 * heads + 4 * kv_size  # q in place; k and v read and written
    yield Work("rope_kv_write", name, tokens * moved * ELEMENT, 6 * tokens * (heads + kv_size))


def attention(model: Model, name: str) -> Iterator[Work]:
    cache = 2 * model.kv_size * ELEMENT  # bytes of a token
    q_and_out = 2 * model.heads * model.head_dim * ELEMENT
    per_pair = 4 * model.heads * model.head_dim
    yield Work(
        "paged_attention, decode", f"{name}, {DECODES} x {CONTEXT}", DECODES * (CONTEXT * cache + q_and_out),
        DECODES * CONTEXT * per_pair,
    )  # fmt: skip
    yield Work(
        "paged_attention, prefill", f"{name}, {CHUNK}", CHUNK * (cache + q_and_out), CHUNK * CHUNK / 2 * per_pair
    )


def cache_forms(model: Model) -> Iterator[Work]:
    tokens, hidden, kv_size = DECODES * CONTEXT, model.hidden, model.kv_size
    name = f"{model.name}, {tokens} tokens"
    yield Work("hidden_write", f"{model.name}, {CHUNK} tokens", 2 * CHUNK * hidden * ELEMENT, 0)
    yield Work("hidden_gather", name, 2 * tokens * hidden * ELEMENT, 0)
    gemm_bytes = (tokens * (hidden + 2 * kv_size) + 2 * hidden * kv_size) * ELEMENT
    yield Work("K and V product (cuBLAS)", name, gemm_bytes, 4 * tokens * hidden * kv_size)
    yield Work("project_rope_write", name, 4 * tokens * kv_size * ELEMENT, 5 * tokens * kv_size)
    unit = LAYERS_PER_UNIT * BLOCK_SIZE * kv_size * ELEMENT
    yield Work("unit_copy, on the device", f"{model.name}, 256 units of {unit >> 10} KiB", 2 * 256 * unit, 0)


def sampling(model: Model) -> Iterator[Work]:
    rows = DECODES * model.vocab
    yield Work("draw_tokens, from memory", f"{model.name}, {DECODES} rows", 4 * rows, 0)


def all_work() -> Iterator[Work]:
    for model in (QWEN, LLAMA):
        yield from rows_of(model, DECODES, f"{model.name}, {DECODES}")
        yield from rows_of(model, CHUNK, f"{model.name}, {CHUNK}")
        yield from attention(model, model.name)
    for model in (QWEN, LLAMA_MHA):
        yield from cache_forms(model)
    for model in (QWEN, LLAMA):
        yield from sampling(model)


def main() -> None:
    rows = [
        [work.kernel, work.shape, f"{work.num_bytes / 1e6:.2f}", f"{work.num_operations / 1e9:.2f}", *work.limits_us()]
        for work in all_work()
    ]
    print(render(["kernel", "shape", "MB", "GFLOP", *(f"{name} us" for name in DEVICES)], rows))


if __name__ == "__main__":
    main()

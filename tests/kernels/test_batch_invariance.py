"""What attention gives a query is the same to the last bit, however its sequence comes and whoever comes with it.

The oracle is the kernel itself: a query alone, on one thread. What is right is for test_paged_attention.py to say.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from fakes.paged_batch import PagedBatch, Sequence, make_paged_batch
from worker import ops
from worker.batch.paged_pool import StepBatch

POOL_DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ragged = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@dataclass(frozen=True)
class World:
    """Sequences that are in the pool whole, and a query vector for each of their tokens."""

    paged: PagedBatch
    sequences: list[Sequence]
    q: torch.Tensor  # [tokens, heads, head_dim]
    sliding_window: int

    def attend(self, chunks: list[tuple[int, int, int]]) -> list[torch.Tensor]:
        """chunks: (sequence, begin, end) each, the tokens [begin, end) as queries of one call."""
        start, rows = self.paged.batch.query_start.tolist(), self.paged.batch.rows
        tokens = torch.cat([torch.arange(start[s] + begin, start[s] + end) for s, begin, end in chunks])
        lengths = [end - begin for _, begin, end in chunks]
        batch = StepBatch(
            token_ids=self.paged.batch.token_ids[tokens],
            positions=self.paged.batch.positions[tokens],
            token_row=self.paged.batch.token_row[tokens],
            query_start=torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32),
            seq_lens=torch.tensor([end for _, _, end in chunks], dtype=torch.int32),
            rows=rows[[s for s, _, _ in chunks]],
            sample_tokens=torch.arange(len(chunks)),
            max_query_len=max(lengths),
            max_seq_len=max(end for _, _, end in chunks),
        )
        out = ops.paged_attention(
            self.q[tokens], batch, self.paged.pool, 0, self.q.shape[-1] ** -0.5, self.sliding_window
        )
        return list(out.split(lengths))

    def alone(self, sequence: int) -> torch.Tensor:
        """Each token of a sequence as a decode of its own."""
        length = self.sequences[sequence].seq_len
        return torch.cat([self.attend([(sequence, i, i + 1)])[0] for i in range(length)])


def make_world(
    lengths: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    dtype: torch.dtype,
    sliding_window: int = 0,
    in_int8: Collection[int] | None = None,
) -> World:
    sequences = [Sequence(n, n) for n in lengths]
    paged = make_paged_batch(sequences, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype, in_int8=in_int8)
    return World(paged, sequences, torch.randn(paged.num_tokens, num_heads, head_dim), sliding_window)


def random_chunks(length: int, rng: random.Random) -> list[tuple[int, int]]:
    cuts = sorted(rng.sample(range(1, length), min(length - 1, rng.choice([0, 1, 2, 5, 20]))))
    return list(zip([0, *cuts], [*cuts, length], strict=True))


def assert_invariant(world: World, seed: int, *, num_examples: int = 4) -> None:
    rng = random.Random(seed)
    alone = [world.alone(s) for s in range(len(world.sequences))]
    for _ in range(num_examples):
        chunks = [(s, *c) for s, sequence in enumerate(world.sequences) for c in random_chunks(sequence.seq_len, rng)]
        rng.shuffle(chunks)
        size = rng.choice([1, 2, 5, len(chunks)])
        for i in range(0, len(chunks), size):
            together = chunks[i : i + size]
            for (s, begin, end), out in zip(together, world.attend(together), strict=True):
                assert torch.equal(out, alone[s][begin:end]), (s, begin, end)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(4, 4, 32), (8, 2, 64), (3, 1, 128), (14, 1, 80), (26, 2, 16), (2, 2, 9)],
)
@pytest.mark.parametrize("sliding_window", [0, 70])
def test_attention_of_chunks_and_companies(
    cpu_device: KernelDevice, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, sliding_window: int
) -> None:
    assert_invariant(make_world([1, 65, 140], num_heads, num_kv_heads, head_dim, dtype, sliding_window), seed=1)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(4, 4, 32), (8, 2, 64), (3, 1, 128), (14, 1, 80)])
@pytest.mark.parametrize("sliding_window", [0, 70])
def test_attention_of_rows_in_int8_and_others(
    cpu_device: KernelDevice, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, sliding_window: int
) -> None:
    lengths = [1, 65, 140, 65]
    world = make_world(lengths, num_heads, num_kv_heads, head_dim, dtype, sliding_window, in_int8=[0, 2])
    assert_invariant(world, seed=1, num_examples=2)


@pytest.mark.parametrize("dtype", POOL_DTYPES)
@pytest.mark.parametrize("sliding_window", [0, 600])
@pytest.mark.parametrize("in_int8", [None, [0, 2, 7], [1, 3, 30]], ids=["none", "itself", "others"])
def test_attention_of_a_long_sequence_split_or_not(
    cpu_device: KernelDevice, dtype: torch.dtype, sliding_window: int, in_int8: list[int] | None
) -> None:
    """Alone its keys are split among threads, in company they are not."""
    world = make_world([1500, *[3] * 30], 2, 1, 32, dtype, sliding_window, in_int8)
    others = [(s, 0, 3) for s in range(1, 31)]
    for begin, end in ((1499, 1500), (1490, 1500), (700, 701), (1400, 1500)):
        alone = world.attend([(0, begin, end)])[0]
        assert torch.equal(world.attend([*others, (0, begin, end)])[-1], alone)
        assert torch.equal(world.attend([(0, end - 1, end)])[0], alone[-1:])
        assert torch.equal(world.attend([(0, 0, end)])[0][begin:], alone)


@ragged
@given(
    lengths=st.lists(st.integers(1, 90), min_size=1, max_size=4),
    num_kv_heads=st.integers(1, 2),
    group=st.integers(1, 14),
    head_dim=st.integers(1, 70),
    dtype=st.sampled_from(POOL_DTYPES),
    sliding_window=st.sampled_from([0, 0, 1, 20]),
    seed=st.integers(0, 1000),
)
def test_attention_of_any_shape(
    cpu_device: KernelDevice,
    lengths: list[int],
    num_kv_heads: int,
    group: int,
    head_dim: int,
    dtype: torch.dtype,
    sliding_window: int,
    seed: int,
) -> None:
    world = make_world(lengths, group * num_kv_heads, num_kv_heads, head_dim, dtype, sliding_window)
    assert_invariant(world, seed, num_examples=2)

"""Decodes whose tables begin with the same units are given what each is given alone, to the last bit."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from fakes.paged_batch import PagedBatch, Sequence, alone, make_paged_batch
from worker import ops
from worker.ops import native, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int8]
SHAPES = [(4, 4, 32), (8, 2, 64), (12, 1, 80), (14, 1, 64), (2, 2, 9)]
ragged = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def share(paged: PagedBatch, sequence: int, other: int, num_tokens: int) -> None:
    """The first whole blocks of these tokens: `sequence` has those of `other`, in all layers."""
    table, rows = paged.pool.block_table, paged.batch.rows
    blocks = num_tokens // paged.pool.block_size
    table[rows[sequence], :, :, :blocks] = table[rows[other], :, :, :blocks]


def assert_as_alone(paged: PagedBatch, num_heads: int, layer: int = 0, sliding_window: int = 0) -> torch.Tensor:
    head_dim = paged.pool.head_dim
    q, scale = torch.randn(paged.num_tokens, num_heads, head_dim), head_dim**-0.5
    together = ops.paged_attention(q, paged.batch, paged.pool, layer, scale, sliding_window)
    for sequence in range(len(paged.batch.rows)):
        one, tokens = alone(paged.batch, sequence)
        expected = ops.paged_attention(q[tokens].contiguous(), one, paged.pool, layer, scale, sliding_window)
        assert torch.equal(together[tokens], expected), sequence
    return q


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("sliding_window", [0, 400])
def test_documents_behind_a_system_prompt(
    cpu_device: KernelDevice, num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype, sliding_window: int
) -> None:
    """Two documents behind one prompt, of which one ends within a partition; among those who ask about them are a
    chunk of a prompt, a sequence that ends in the document, and one that shares nothing."""
    lengths = [900, 930, 901, 1000, 900, 905, 911, 1023, 1025, 960, 880, 990, 997]
    sequences = [*(Sequence(1, n) for n in lengths), Sequence(5, 900), Sequence(1, 600), Sequence(1, 777)]
    paged = make_paged_batch(sequences, num_kv_heads=num_kv_heads, head_dim=head_dim, dtype=dtype)
    for i in range(1, 15):
        share(paged, i, i % 2, 864 if i % 2 else 592)  # a prompt of 320 and a document of 544 or 272
    share(paged, 1, 0, 320)
    for i in range(3, 15, 2):
        share(paged, i, 1, 864)
    q = assert_as_alone(paged, num_heads, sliding_window=sliding_window)
    if num_heads == 8 and dtype is not torch.bfloat16:  # the twin does not round
        out = ops.paged_attention(q, paged.batch, paged.pool, 0, head_dim**-0.5, sliding_window)
        expected = reference.paged_attention(q, paged.batch, paged.pool, 0, head_dim**-0.5, sliding_window)
        torch.testing.assert_close(out, expected, rtol=2e-5, atol=2e-5)


def num_shared_keys(monkeypatch: pytest.MonkeyPatch, paged: PagedBatch, num_heads: int) -> int:
    counts = []
    attend = native.kernels.paged_attention
    with monkeypatch.context() as patch:
        patch.setattr(native.kernels, "paged_attention", lambda *args: counts.append(attend(*args)))
        ops.paged_attention(
            torch.randn(paged.num_tokens, num_heads, paged.pool.head_dim), paged.batch, paged.pool, 0, 1
        )
    return sum(counts)


def test_what_is_read_together(cpu_device: KernelDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """No result shows it, so the kernel counts."""

    def count(lengths: list[int], shared: dict[int, int], *, block_size: int = 16, num_heads: int = 2) -> int:
        """shared: of sequence i with sequence 0."""
        paged = make_paged_batch([Sequence(1, n) for n in lengths], head_dim=32, block_size=block_size)
        for i, num_tokens in shared.items():
            share(paged, i, 0, min(num_tokens, lengths[0]))
        return num_shared_keys(monkeypatch, paged, num_heads)

    document = dict.fromkeys(range(1, 12), 750)
    assert count([800] * 12, document) == 12 * 704  # whole blocks of 16, whole blocks of 64 keys
    assert count([800] * 12, document, block_size=100) == 12 * 640  # 700 are in whole blocks
    assert count([800] * 11, dict.fromkeys(range(1, 11), 750)) == 0  # too few rows
    assert count([800] * 6, dict.fromkeys(range(1, 6), 750), num_heads=4) == 6 * 704  # two heads for each of keys
    assert count([800] * 12, {}) == 0
    assert count([705, *[800] * 11], document) == 12 * 704
    assert count([704, *[800] * 11], document) == 12 * 640  # its last key is its own
    assert count([800] * 24, document | dict.fromkeys(range(12, 24), 300)) == 12 * 704 + 12 * 256


@ragged
@given(data=st.data())
def test_any_tree_of_prefixes(cpu_device: KernelDevice, data: st.DataObject) -> None:
    num_seqs = data.draw(st.integers(2, 24))
    block_size = data.draw(st.sampled_from([1, 7, 16, 64, 100]))
    group, num_kv_heads = data.draw(st.integers(1, 13)), data.draw(st.integers(1, 3))
    head_dim = data.draw(st.sampled_from([8, 16, 40, 64]))
    rng = random.Random(data.draw(st.integers(0, 1000)))
    paged = make_paged_batch(
        [Sequence(rng.choice([1, 1, 1, 2, 9]), rng.randint(9, 700)) for _ in range(num_seqs)],
        num_layers=3, layers_per_unit=2, block_size=block_size, num_kv_heads=num_kv_heads, head_dim=head_dim,
        dtype=data.draw(st.sampled_from(DTYPES)),
    )  # fmt: skip
    lengths = paged.batch.seq_lens.tolist()
    for i in range(1, num_seqs):
        other = rng.randrange(i)
        both = min(lengths[i], lengths[other])
        share(paged, i, other, rng.choice([both, rng.randint(0, both), min(both, 300), min(both, 64)]))
    assert_as_alone(paged, group * num_kv_heads, 2, data.draw(st.sampled_from([0, 0, 1, 300])))


@pytest.mark.parametrize("dtype", DTYPES[:3])
def test_rows_in_int8_take_no_part(
    cpu_device: KernelDevice, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Though their tables begin with the same units, too."""
    sequences, in_int8 = [Sequence(1, 800 + i) for i in range(20)], [0, 3, 4, 11, 12, 19]
    paged = make_paged_batch(sequences, num_layers=3, head_dim=32, dtype=dtype, in_int8=in_int8)
    for i in range(2, 20):
        share(paged, i, 0 if i in in_int8 else 1, 750)
    assert num_shared_keys(monkeypatch, paged, 2) == 14 * 704
    q = assert_as_alone(paged, 2, layer=1)
    together = ops.paged_attention(q, paged.batch, paged.pool, 1, 32**-0.5)
    without = make_paged_batch(sequences, num_layers=3, head_dim=32, dtype=dtype)
    for i in range(2, 20):
        share(without, i, 0 if i in in_int8 else 1, 750)
    expected = ops.paged_attention(q, without.batch, without.pool, 1, 32**-0.5)
    others = [i for i in range(20) if i not in in_int8]
    assert torch.equal(together[others], expected[others])

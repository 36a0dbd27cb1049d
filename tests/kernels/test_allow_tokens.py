"""Tokens that a mask forbids: against the torch twin, on every instruction set."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fakes.kernel_device import KernelDevice
from worker import ops
from worker.ops import reference


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 211, 1024, 5000])
def test_it_does_what_the_twin_does(cpu_device: KernelDevice, vocab_size: int) -> None:
    draw = np.random.default_rng(vocab_size)
    num_rows, num_words = 9, -(-vocab_size // 32) + 1  # a mask may have more bits than there are tokens
    masks = [draw.integers(0, 2**32, num_words, dtype=np.uint32) for _ in range(5)]
    masks[0][:], masks[1][:] = 0, 2**32 - 1
    rows = draw.permutation(num_rows)[:5].astype(np.int32)
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(1))
    logits[rows[1:3]] = torch.tensor([float("nan"), float("inf")])[:, None]
    expected = logits.clone()
    reference.allow_tokens(expected, rows, masks)
    ops.allow_tokens(logits, rows, masks)
    assert logits.numpy().tobytes() == expected.numpy().tobytes()


def test_as_many_masks_as_rows(cpu_device: KernelDevice) -> None:
    with pytest.raises(ValueError, match="as many masks"):
        ops.allow_tokens(torch.zeros(2, 8), np.arange(2, dtype=np.int32), [np.zeros(1, np.uint32)])


@pytest.mark.parametrize("num_bits", [0, 1, 3, 500, 10**6])
@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 211, 1024, 5000])
def test_the_likeliest_that_is_allowed(cpu_device: KernelDevice, vocab_size: int, num_bits: int) -> None:
    """As behind a mask that is applied, with ties, NaN, infinities and rows of which nothing is left."""
    draw = np.random.default_rng(vocab_size + num_bits)
    num_rows, num_words = 9, -(-vocab_size // 32) + 1
    masks = []
    for _ in range(6):
        bits = np.zeros(32 * num_words, np.uint8)
        bits[draw.integers(0, len(bits), min(num_bits, 30 * len(bits)))] = 1
        masks.append(np.packbits(bits, bitorder="little").view(np.uint32))
    rows = draw.permutation(num_rows)[:6].astype(np.int32)
    logits = torch.from_numpy(draw.integers(-3, 3, (num_rows, vocab_size)).astype(np.float32))  # ties
    odd = [float("nan"), float("inf"), float("-inf")]
    for row, value in zip(rows[1:4].tolist(), odd, strict=True):
        logits[row, int(draw.integers(vocab_size))] = value
    logits[rows[4]] = float("-inf")
    before = logits.clone()
    masked = logits.clone()
    reference.allow_tokens(masked, rows, masks)
    tokens = ops.argmax(logits)[rows]
    ops.allowed_argmax_at(logits, rows, np.array([mask.ctypes.data for mask in masks], np.uint64), tokens)
    assert tokens.tolist() == reference.argmax(masked)[rows].tolist()
    assert logits.numpy().tobytes() == before.numpy().tobytes()

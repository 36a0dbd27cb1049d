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

"""Masks on logits: every way to apply them does what the bits say."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from worker.grammars import masks
from worker.ops import reference


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 211, 1024])
@pytest.mark.parametrize("apply", [masks.allow_only, reference.allow_tokens], ids=["kernel", "twin"])
def test_only_what_is_allowed_stays(apply: object, vocab_size: int) -> None:
    draw = np.random.default_rng(vocab_size)
    words = [draw.integers(0, 2**32, vocab_size // 32 + 2, dtype=np.uint32) for _ in range(2)]
    logits = torch.randn(3, vocab_size, generator=torch.Generator().manual_seed(1))
    expected = logits.clone()
    for row, mask in zip((0, 2), words, strict=True):
        for token in range(vocab_size):
            if not mask[token // 32] >> np.uint32(token % 32) & np.uint32(1):
                expected[row, token] = float("-inf")
    assert callable(apply)
    apply(logits, np.array([0, 2]) if apply is reference.allow_tokens else [0, 2], words)
    assert torch.equal(logits, expected)


def test_what_is_not_finite_is_not_hidden() -> None:
    logits = torch.full((1, 64), float("nan"))
    masks.allow_only(logits, [0], [np.full(2, 2**32 - 1, np.uint32)])
    assert logits.isnan().all()

"""In which form the products of a rounded checkpoint are computed, and what is said of it."""

from __future__ import annotations

import logging
from collections import Counter

import torch

from worker.ops.weights.rounded_weight import INT4, INT8, RoundedWeight

logger = logging.getLogger("worker")

OWN_FORMS = (INT4, INT8)  # that a checkpoint's integers are taken over to, the smallest first
_DENSE = ""


class ProductForms:
    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def count(self, rounded: RoundedWeight | None) -> None:
        """None: of integers that are no form of ours, or of another than was asked for."""
        self._counts[_DENSE if rounded is None else rounded.quantization] += 1

    def log(self, method: str, dtype: torch.dtype) -> None:
        kept = [f"{self._counts[form]} as {form}" for form in self._counts if form != _DENSE]
        if kept:
            logger.info("integers of the %s checkpoint as they are: %s products", method, ", ".join(kept))
        if self._counts[_DENSE]:
            logger.warning(
                "%d products of the %s checkpoint have groups or levels that our blocks cannot say: they are unpacked "
                "to %s, or rounded again with --quantization (docs/quantization.md)",
                self._counts[_DENSE],
                method,
                str(dtype).removeprefix("torch."),
            )

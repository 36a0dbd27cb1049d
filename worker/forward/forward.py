"""A plan through the model, in one of two ways that give the same numbers: one native call, or layer by layer.

Here all cache is K and V. What else there is stands in worker/forms/, and recorded steps in step_graphs.py.

Tensors that come out of a step are valid until the next one.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.batch.staging import Parcel
from worker.forward.step_inputs import StepInputs, sampled_tokens
from worker.models.decoder import DecoderModel
from worker.ops.decoder_step import DecoderStep

Int32Array = npt.NDArray[np.int32]


class Forward(Protocol):
    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array) -> Tensor:
        """Final hidden states of these tokens (ascending indices into the batch), [n, hidden_size]; fills the pool."""

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        """Likewise their logits, float32 [n, vocab_size], which may be overwritten. At most max_num_seqs tokens.

        others: go to the device with the step's arrays, where there is a device for them to go to.
        """

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        """The likeliest token of each of plan.sample_seqs."""

    def greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        """Likewise, and the logits that they come from, as of logits()."""


class LayerByLayer:
    """Every model on every device."""

    def __init__(self, model: DecoderModel, pool: PagedPool, inputs: StepInputs) -> None:
        self._model, self._pool, self._inputs = model, pool, inputs

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._model.forward(self._inputs.load(plan, sample_tokens, *others), self._pool)

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._model.compute_logits(self.hidden(plan, sample_tokens, *others))

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        return self.greedy(plan)[0]

    @torch.inference_mode()
    def greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        logits = self.logits(plan, sampled_tokens(plan))
        return ops.argmax(logits), logits


class NativeForward:
    """On CPU, for the models that ops.make_decoder_step() knows."""

    def __init__(self, step: DecoderStep) -> None:
        self.step = step

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array) -> Tensor:
        return self.step.hidden(plan, sample_tokens)

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self.step.logits(plan, sample_tokens)

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        return self.step.greedy_tokens(plan)

    def greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        return self.step.greedy(plan)

"""A plan through the model, in one of two ways that give the same numbers: one native call, or layer by layer.

Tensors that come out of a step are valid until the next one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker import ops
from worker.decode_graphs import CudaRecorder, DecodeGraphs, Progress, Rerun
from worker.decoder_step import DecoderStep
from worker.form_inputs import FormInputs, has_forms
from worker.models.decoder import DecoderModel
from worker.models.decoder_weights import decoder_weights
from worker.staging import Parcel
from worker.step_inputs import StepInputs, sampled_tokens
from worker.unit_pool import UnitPool

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


def make_forward(
    model: DecoderModel,
    pool: UnitPool,
    *,
    max_num_seqs: int,
    graph_sizes: Sequence[int] = (),
    progress: Progress = lambda done, total: None,
) -> Forward:
    """With a workspace in the pool, also for plans with cache forms.

    graph_sizes: of batches of decodes that are recorded now, for a pool with a padding row; ascending.
    """
    plain = _make_plain(model, pool, max_num_seqs)
    if graph_sizes:
        recorder = CudaRecorder(pool.data.device) if pool.data.is_cuda else Rerun()
        plain = DecodeGraphs(model, pool, plain, recorder, list(graph_sizes), progress)
    if pool.num_workspace_units == 0:
        return plain
    return WithForms(plain, LayerByLayer(model, pool, FormInputs(pool, model.config.num_layers)))


def _make_plain(model: DecoderModel, pool: UnitPool, max_num_seqs: int) -> Forward:
    weights = decoder_weights(model) if pool.data.is_cpu else None
    if weights is not None:
        return NativeForward(ops.make_decoder_step(weights, pool, max_num_seqs))
    return LayerByLayer(model, pool, StepInputs(pool))


class WithForms:
    """Steps with cache forms run layer by layer, the others as they would without."""

    def __init__(self, plain: Forward, with_forms: LayerByLayer) -> None:
        self.plain, self._with_forms = plain, with_forms

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array) -> Tensor:
        return self._of(plan).hidden(plan, sample_tokens)

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._of(plan).logits(plan, sample_tokens, *others)

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        return self._of(plan).greedy_tokens(plan)

    def _of(self, plan: BatchPlan) -> Forward:
        return self._with_forms if has_forms(plan) else self.plain


class LayerByLayer:
    """Every model on every device."""

    def __init__(self, model: DecoderModel, pool: UnitPool, inputs: StepInputs | FormInputs) -> None:
        self._model, self._pool, self._inputs = model, pool, inputs

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._model.forward(self._inputs.load(plan, sample_tokens, *others), self._pool)

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._model.compute_logits(self.hidden(plan, sample_tokens, *others))

    @torch.inference_mode()
    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        return ops.argmax(self.logits(plan, sampled_tokens(plan)))


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

"""The only Forward that knows of cache forms: plans that have none go on to another one."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.batch.staging import Parcel
from worker.forms.form_decoder import FormDecoder
from worker.forms.form_inputs import FormInputs, has_forms
from worker.forms.projection import project_blocks
from worker.forward.forward import Forward
from worker.forward.step_inputs import apply_block_table_changes, sampled_tokens
from worker.models.decoder import DecoderModel

Int32Array = npt.NDArray[np.int32]


class FormForward:
    def __init__(self, plain: Forward, model: DecoderModel, pool: PagedPool) -> None:
        """REQUIRES: the pool has a workspace."""
        self.plain = plain
        self._decoder, self._pool = FormDecoder(model), pool
        self._inputs = FormInputs(pool, model.config.num_layers)

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array) -> Tensor:
        self._project(plan)
        return self._hidden(plan, sample_tokens) if has_forms(plan) else self.plain.hidden(plan, sample_tokens)

    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        self._project(plan)
        if not has_forms(plan):
            return self.plain.logits(plan, sample_tokens, *others)
        return self._logits(plan, sample_tokens, *others)

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        self._project(plan)
        return self._greedy(plan)[0] if has_forms(plan) else self.plain.greedy_tokens(plan)

    def greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        self._project(plan)
        return self._greedy(plan) if has_forms(plan) else self.plain.greedy(plan)

    def _project(self, plan: BatchPlan) -> None:
        """Blocks that become K and V do so before anything else of the plan is done, but its block table changes."""
        if len(plan.projected_units) == 0:
            return
        if not self._pool.data.is_cpu:
            apply_block_table_changes(plan, self._pool)  # the inputs will bring them once more, which changes nothing
        project_blocks(plan, self._decoder, self._pool)

    def _hidden(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._decoder.forward(self._inputs.load(plan, sample_tokens, *others), self._pool)

    def _logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        return self._decoder.model.compute_logits(self._hidden(plan, sample_tokens, *others))

    @torch.inference_mode()
    def _greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        logits = self._logits(plan, sampled_tokens(plan))
        return ops.argmax(logits), logits

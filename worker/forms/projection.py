"""Blocks of hidden states that become K and V, before a step runs (Projection of cpp/core/base/batch_plan.h)."""

from __future__ import annotations

import numpy as np
import torch

from schedcore._core import BatchPlan
from worker.batch.paged_pool import PagedPool, StoredTokens
from worker.batch.staging import to_device
from worker.forms.form_decoder import FormDecoder
from worker.models.decoder import DecoderModel


@torch.inference_mode()
def project_blocks(plan: BatchPlan, decoder: FormDecoder, pool: PagedPool) -> None:
    """REQUIRES: the plan's block table changes have been applied, nothing else of it has been done."""
    model = decoder.model
    device, block_size = pool.data.device, pool.block_size
    row, block = plan.projections[:, 0], plan.projections[:, 1]
    units = to_device(plan.projected_units.astype(np.int64), device)
    hidden = pool.data[units].view(len(row), -1, *pool.data.shape[1:])  # a copy, [blocks, groups, F, block_size, d_kv]
    hidden = hidden[..., : model.config.hidden_size]
    # Positions that nobody has computed yet hold anything; what becomes of it is written over before it is read.
    positions = (block[:, None] * block_size + np.arange(block_size, dtype=np.int32)).ravel()
    is_known = positions < _num_positions(model)
    rows = np.repeat(row, block_size)[is_known]
    tokens = StoredTokens(to_device(rows, device), to_device(positions[is_known], device))
    kept = to_device(np.flatnonzero(is_known), device)
    for index, attention in enumerate(decoder.attentions):
        x = hidden[:, index // pool.layers_per_unit, index % pool.layers_per_unit]
        x = x.flatten(0, 1)[kept]
        attention.write_projected(x.float() if x.is_cpu else x, tokens, pool)  # in the dtype of activations


def _num_positions(model: DecoderModel) -> int:
    """For which there are rotations: a request's last block may reach beyond."""
    cos_sin = model.layers[0].attention.cos_sin
    return model.config.max_positions if cos_sin is None else len(cos_sin)

"""Which way a model's steps go: one native call, layer by layer, or replayed; and which way those with cache forms."""

from __future__ import annotations

from collections.abc import Sequence

from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.forms.form_forward import FormForward
from worker.forward.forward import Forward, LayerByLayer, NativeForward
from worker.forward.step_graphs import CudaRecorder, Progress, Rerun, StepGraphs
from worker.forward.step_inputs import StepInputs
from worker.forward.step_size import StepSize
from worker.models.decoder import DecoderModel
from worker.models.decoder_weights import decoder_weights


def make_forward(
    model: DecoderModel,
    pool: PagedPool,
    *,
    max_num_seqs: int,
    graph_sizes: Sequence[StepSize] = (),
    progress: Progress = lambda done, total: None,
) -> Forward:
    """With a workspace in the pool, also for plans with cache forms.

    graph_sizes: of steps that are recorded now, for a pool with a padding row; ascending.
    """
    plain = _make_plain(model, pool, max_num_seqs)
    if graph_sizes:
        recorder = CudaRecorder(pool.data.device) if pool.data.is_cuda else Rerun()
        plain = StepGraphs(model, pool, plain, recorder, list(graph_sizes), progress)
    if pool.num_workspace_units == 0:
        return plain
    return FormForward(plain, model, pool)


def _make_plain(model: DecoderModel, pool: PagedPool, max_num_seqs: int) -> Forward:
    weights = decoder_weights(model) if pool.data.is_cpu else None
    if weights is not None:
        return NativeForward(ops.make_decoder_step(weights, pool, max_num_seqs))
    return LayerByLayer(model, pool, StepInputs(pool))

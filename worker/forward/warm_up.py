"""A forward pass on made-up input: reserves activation memory before the pool is measured, pays first-call costs."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch

from worker import ops
from worker.base.errors import CheckpointError
from worker.batch.paged_pool import NUM_VECTOR_KINDS, PagedPool, StepBatch
from worker.models.decoder import DecoderModel
from worker.models.decoder_weights import decoder_weights
from worker.ops.decoder_step import Int32Array


def warm_up(
    model: DecoderModel, *, num_tokens: int, num_samples: int, max_len: int, dtype: torch.dtype, device: torch.device
) -> None:
    """Runs num_tokens tokens in sequences of up to max_len, with logits for the last num_samples of them.

    Raises CheckpointError if the logits are not finite: every answer would be nonsense.
    """
    config = model.config
    starts = [*range(0, num_tokens, max_len), num_tokens]
    lens = [end - start for start, end in itertools.pairwise(starts)]

    def ints(values: list[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    # All blocks of the only row are unit 0: they overwrite each other, which is fine for values nobody reads.
    block_size = 16
    table = torch.zeros((1, config.num_layers, NUM_VECTOR_KINDS, -(-max(lens) // block_size)), dtype=torch.int32)
    data = torch.zeros((1, 1, block_size, config.kv_size), dtype=dtype, device=device)
    pool = PagedPool(data, table.to(device), config.num_kv_heads, config.head_dim)
    batch = StepBatch(
        token_ids=ints([0] * num_tokens),
        positions=ints([position for length in lens for position in range(length)]),
        token_row=ints([0] * num_tokens),
        query_start=ints(starts),
        seq_lens=ints(lens),
        rows=ints([0] * len(lens)),
        sample_tokens=torch.arange(max(0, num_tokens - num_samples), num_tokens, device=device),
        max_query_len=max(lens),
        max_seq_len=max(lens),
    )
    with torch.inference_mode():
        logits = _logits(model, batch, pool)
        logits.softmax(-1).argmax(-1).cpu()
        if not bool(logits.isfinite().all()):
            name = str(dtype).removeprefix("torch.")
            raise CheckpointError(
                f"the model computes numbers that are not finite (NaN or infinity) in {name}: "
                "check the checkpoint's weights, and in its config.json rms_norm_eps, rope_theta and the rope scaling; "
                "a model made for bfloat16 or float32 may overflow in float16"
            )


def _logits(model: DecoderModel, batch: StepBatch, pool: PagedPool) -> torch.Tensor:
    """In the way in which steps will run (worker/forward/forward.py)."""
    weights = decoder_weights(model) if pool.data.is_cpu else None
    if weights is None:
        return model.compute_logits(model.forward(batch, pool))
    samples = batch.sample_tokens.to(torch.int32).numpy()
    arrays = (batch.token_ids, batch.positions, batch.token_row, batch.query_start, batch.seq_lens, batch.rows)
    step = _Arrays._make([*(tensor.numpy() for tensor in arrays), samples])
    return ops.make_decoder_step(weights, pool, len(samples)).logits(step, samples)


class _Arrays(NamedTuple):
    token_ids: Int32Array
    positions: Int32Array
    token_row: Int32Array
    query_start: Int32Array
    seq_lens: Int32Array
    rows: Int32Array
    sample_seqs: Int32Array

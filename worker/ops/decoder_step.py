"""A whole decoder on CPU as one native call."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.batch.paged_pool import PagedPool
from worker.ops import native
from worker.ops.weights.packed_linear import PackedLinear
from worker.ops.weights.step_weights import DecoderWeights, LayerWeights, check_decoder_weights

Int32Array = npt.NDArray[np.int32]


class StepArrays(Protocol):
    """The arrays of a BatchPlan that a step reads, int32 and contiguous; see schedcore/_core.pyi."""

    @property
    def token_ids(self) -> Int32Array: ...
    @property
    def positions(self) -> Int32Array: ...
    @property
    def token_row(self) -> Int32Array: ...
    @property
    def query_start(self) -> Int32Array: ...
    @property
    def seq_lens(self) -> Int32Array: ...
    @property
    def rows(self) -> Int32Array: ...
    @property
    def sample_seqs(self) -> Int32Array: ...


class NativeDecoder(Protocol):
    """What is called of _kernels.Decoder, see kernels/include/decoder_step.h. hidden, logits: addresses."""

    def run(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        token_row: Int32Array,
        query_start: Int32Array,
        seq_lens: Int32Array,
        rows: Int32Array,
        sample_tokens: Int32Array,
        hidden: int,
        logits: int,
    ) -> None: ...
    def run_greedy(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        token_row: Int32Array,
        query_start: Int32Array,
        seq_lens: Int32Array,
        rows: Int32Array,
        sample_seqs: Int32Array,
        hidden: int,
        logits: int,
    ) -> Int32Array: ...
    def take_stage_ns(self) -> tuple[int, ...]: ...


class DecoderStep:
    """Made by make_decoder_step(). For models of RMSNorm before each half layer, rotated positions, silu(gate) * up."""

    STAGES = ("embedding", "qkv", "attention", "output", "mlp", "head")

    def __init__(
        self, native: NativeDecoder, hidden_size: int, vocab_size: int, max_num_samples: int, keep: object
    ) -> None:
        """max_num_samples: of tokens whose logits a step computes. keep: owns the memory that `native` uses."""
        self._native, self._hidden_size, self._kept = native, hidden_size, keep
        # memory that nothing is written to is not resident
        self._hidden, self._logits = (
            torch.empty(max_num_samples, hidden_size),
            torch.empty(max_num_samples, vocab_size),
        )
        self._buffers = self._hidden.data_ptr(), self._logits.data_ptr()

    def hidden(self, step: StepArrays, sample_tokens: Int32Array) -> Tensor:
        """Final hidden states of any number of tokens (ascending indices), float32 [n, H], a tensor of its own."""
        hidden = torch.empty(len(sample_tokens), self._hidden_size)
        self._run(step, sample_tokens, hidden.data_ptr(), 0)
        return hidden

    def logits(self, step: StepArrays, sample_tokens: Int32Array) -> Tensor:
        """Of at most max_num_samples tokens, float32 [n, V], valid until the next step."""
        if len(sample_tokens) > len(self._logits):
            raise ValueError(f"logits of {len(sample_tokens)} tokens, more than {len(self._logits)}")
        self._run(step, sample_tokens, *self._buffers)
        return self._logits[: len(sample_tokens)]

    def greedy_tokens(self, step: StepArrays) -> Int32Array:
        """The likeliest token of each of step.sample_seqs, at most max_num_samples. All in one call, without torch."""
        return self._native.run_greedy(
            step.token_ids, step.positions, step.token_row, step.query_start, step.seq_lens, step.rows,
            step.sample_seqs, *self._buffers,
        )  # fmt: skip

    def greedy(self, step: StepArrays) -> tuple[Int32Array, Tensor]:
        """Likewise, and the logits that they come from, float32 [n, V], valid until the next step."""
        tokens = self.greedy_tokens(step)
        return tokens, self._logits[: len(tokens)]

    def _run(self, step: StepArrays, sample_tokens: Int32Array, hidden: int, logits: int) -> None:
        self._native.run(
            step.token_ids, step.positions, step.token_row, step.query_start, step.seq_lens, step.rows, sample_tokens,
            hidden, logits,
        )  # fmt: skip

    def take_stage_seconds(self) -> dict[str, float]:
        """Time spent by stage since the last call; the first call starts the measurement."""
        return {stage: ns * 1e-9 for stage, ns in zip(self.STAGES, self._native.take_stage_ns(), strict=True)}


def has_decoder_step(weight: PackedLinear) -> bool:
    """Whether make_decoder_step() takes models with weights like this one."""
    return weight.panel_width > 0


def make_decoder_step(weights: DecoderWeights, pool: PagedPool, max_num_samples: int) -> DecoderStep:
    """A whole decoder on CPU as one native call, with the kernels that the operations above have.

    Weights are checked here, once; arrays of a step are the core's and are not. max_num_samples: of tokens whose logits
    a step computes.
    """
    check_decoder_weights(weights, pool)
    vocab_size, hidden_size = weights.embedding.shape
    decoder = native.kernels.Decoder(
        native.pool_of(pool), weights.embedding.data_ptr(), native.DTYPES[weights.embedding.dtype],
        weights.cos_sin.data_ptr(), [_native_layer(layer) for layer in weights.layers],
        weights.final_norm.data_ptr(), _native_linear(weights.head), hidden_size, weights.num_heads,
        weights.cos_sin.shape[1], weights.norm_eps, pool.head_dim**-0.5, pool.arrivals.num_landed.ctypes.data,
        len(weights.cos_sin), len(pool.block_table),
    )  # fmt: skip
    return DecoderStep(decoder, hidden_size, vocab_size, max_num_samples, keep=(weights, pool))


def _native_linear(linear: PackedLinear) -> native.kernels.LinearWeight:
    bias = 0 if linear.bias is None else linear.bias.data_ptr()
    return native.kernels.LinearWeight(
        linear.weight.data_ptr(), bias, linear.in_features, linear.out_features, linear.panel_width,
        linear.form, linear.is_gated,
    )  # fmt: skip


def _native_layer(layer: LayerWeights) -> native.kernels.DecoderLayer:
    q_norm, k_norm = (0 if norm is None else norm.data_ptr() for norm in (layer.q_norm, layer.k_norm))
    return native.kernels.DecoderLayer(
        layer.attention_norm.data_ptr(), _native_linear(layer.qkv), q_norm, k_norm, _native_linear(layer.output),
        layer.sliding_window, layer.mlp_norm.data_ptr(), _native_linear(layer.gate_up), _native_linear(layer.down),
    )  # fmt: skip

"""A whole decoder on CPU as one native call. Made by ops.make_decoder_step()."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from worker.step_arguments import StepArrays

Int32Array = npt.NDArray[np.int32]


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
    """For models of RMSNorm before each half layer, rotated positions and silu(gate) * up."""

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

    def _run(self, step: StepArrays, sample_tokens: Int32Array, hidden: int, logits: int) -> None:
        self._native.run(
            step.token_ids, step.positions, step.token_row, step.query_start, step.seq_lens, step.rows, sample_tokens,
            hidden, logits,
        )  # fmt: skip

    def take_stage_seconds(self) -> dict[str, float]:
        """Time spent by stage since the last call; the first call starts the measurement."""
        return {stage: ns * 1e-9 for stage, ns in zip(self.STAGES, self._native.take_stage_ns(), strict=True)}

"""Steps that are recorded once per size and then replayed: one launch instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.batch.staging import Parcel, to_device
from worker.forward.forward import Forward
from worker.forward.recorded_inputs import RecordedInputs
from worker.forward.step_inputs import sampled_tokens
from worker.forward.step_size import StepSize
from worker.models.decoder import DecoderModel

Int32Array = npt.NDArray[np.int32]
Run = Callable[[], None]
Progress = Callable[[int, int], None]  # recorded, of how many


class Recorder(Protocol):
    def record(self, run: Run) -> Run:
        """What repeats `run`, reading and writing the same memory. run: does the same whenever it is called."""


class CudaRecorder:
    """CUDA graphs. They share the memory of what is computed on the way: only one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, run: Run) -> Run:
        """Runs it once before: loading kernels and choosing cuBLAS's algorithms cannot be recorded."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            run()
        current.wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, self._memory, self._stream, capture_error_mode="thread_local"):
            run()
        return graph.replay


class Rerun:
    """Records nothing: to replay is to run again. For where there are no graphs, which then show what padding does."""

    def record(self, run: Run) -> Run:
        run()
        return run


class StepGraphs:
    """A Forward. Steps are padded to a recorded size; what fits none runs eagerly."""

    def __init__(
        self,
        model: DecoderModel,
        pool: PagedPool,
        eager: Forward,
        recorder: Recorder,
        sizes: list[StepSize],
        progress: Progress = lambda done, total: None,
    ) -> None:
        """sizes: ascending. REQUIRES: pool.has_padding_row."""
        self._model, self._pool, self._eager = model, pool, eager
        self._inputs = RecordedInputs(pool, sizes)
        most = max(size.num_seqs for size in sizes)
        self._logits = torch.empty(most, model.config.vocab_size, device=pool.data.device)
        self._hidden: dict[StepSize, Tensor] = {}  # of steps with chunks, [num_seqs, hidden_size]
        self._replays: dict[StepSize, Run] = {}
        self.num_replayed = 0
        with torch.inference_mode():
            for size in reversed(sizes):  # the largest first: the others fit into its memory
                self._replays[size] = recorder.record(partial(self._run, size))
                progress(len(self._replays), len(sizes))

    def hidden(self, plan: BatchPlan, sample_tokens: Int32Array) -> Tensor:
        return self._eager.hidden(plan, sample_tokens)

    @torch.inference_mode()
    def logits(self, plan: BatchPlan, sample_tokens: Int32Array, *others: Parcel) -> Tensor:
        size = self._inputs.size_of(plan, sample_tokens, *others)
        if size is None:
            return self._eager.logits(plan, sample_tokens, *others)
        self._inputs.load(size, plan, sample_tokens, *others)
        self._replays[size]()
        self.num_replayed += 1
        num_samples = len(sample_tokens)
        if not size.is_of_decodes:  # how many of them sample differs widely: the product with the vocabulary counts
            return self._model.compute_logits(self._hidden[size][:num_samples], self._logits[:num_samples])
        if num_samples == plan.num_seqs:
            return self._logits[:num_samples]
        return self._logits[to_device(sample_tokens.astype(np.int64), self._logits.device)]

    def greedy_tokens(self, plan: BatchPlan) -> Int32Array:
        return self.greedy(plan)[0]

    @torch.inference_mode()
    def greedy(self, plan: BatchPlan) -> tuple[Int32Array, Tensor]:
        logits = self.logits(plan, sampled_tokens(plan))
        return ops.argmax(logits), logits

    def _run(self, size: StepSize) -> None:
        hidden = self._model.forward(self._inputs.batches[size], self._pool)
        if size.is_of_decodes:
            self._model.compute_logits(hidden, self._logits[: size.num_seqs])
        else:
            self._hidden[size] = hidden  # where every replay writes it

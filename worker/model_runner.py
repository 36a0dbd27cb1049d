"""The executor that runs a real model: plan -> logits -> token ids."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from schedcore.types import EngineRequest
from worker import ops
from worker.executor import StepResult
from worker.forward import Forward, make_forward
from worker.models.decoder import DecoderModel
from worker.projection import project_blocks
from worker.prompt_logprobs import Chunk, PromptLogprobs, token_indices
from worker.sampler import Sampler
from worker.staging import Parcel, to_device
from worker.step_inputs import begin_changes, sampled_tokens
from worker.unit_pool import UnitPool


class ModelRunner:
    """Implements Executor. Everything it keeps between steps: the pool, and what sampling needs per request."""

    def __init__(
        self, model: DecoderModel, pool: UnitPool, *, max_num_seqs: int, seed: int = 0, forward: Forward | None = None
    ) -> None:
        """forward: None: as make_forward() chooses."""
        self._model, self._pool = model, pool
        self._forward = forward or make_forward(model, pool, max_num_seqs=max_num_seqs)
        self._sampler = Sampler(max_num_seqs, model.config.vocab_size, seed)
        self._prompt_logprobs = PromptLogprobs()

    def add_request(self, request: EngineRequest) -> None:
        self._sampler.add(request)
        self._prompt_logprobs.add(request)

    def remove_request(self, request_id: int) -> None:
        self._sampler.remove(request_id)
        self._prompt_logprobs.remove(request_id)

    def execute(self, plan: BatchPlan) -> StepResult:
        begin_changes(plan, self._pool)
        project_blocks(plan, self._model, self._pool)
        chunks = self._prompt_logprobs.chunks(plan)
        if not chunks and self._sampler.is_greedy(plan):
            return StepResult(self._forward.greedy_tokens(plan), None, self._prompt_logprobs.take_complete(plan))
        with torch.inference_mode():
            drawing = None
            if chunks:
                logits = self._run_with_prompt_logprobs(plan, chunks)
            else:
                drawing = self._drawing(plan)
                logits = self._forward.logits(plan, sampled_tokens(plan), *([] if drawing is None else [drawing]))
            token_ids, logprobs = self._sampler.sample(logits, plan, drawing)
            return StepResult(token_ids, logprobs, self._prompt_logprobs.take_complete(plan))

    def _drawing(self, plan: BatchPlan) -> Parcel | None:
        """What goes to the device with the step's arrays, for the sampler."""
        return self._sampler.drawing(plan) if ops.draws_on_device(self._pool.data) else None

    def _run_with_prompt_logprobs(self, plan: BatchPlan, chunks: list[Chunk]) -> Tensor:
        """Logits of the tokens that sample."""
        sampled, prompt = sampled_tokens(plan), token_indices(chunks)
        needed = np.sort(np.concatenate((sampled, prompt)))  # disjoint: a prompt's last token is in no chunk
        hidden = self._forward.hidden(plan, needed)
        places = to_device(np.searchsorted(needed, np.concatenate((sampled, prompt))), hidden.device)
        of_sampled, of_prompt = hidden[places].split_with_sizes([len(sampled), len(prompt)])
        for chunk, part in zip(chunks, of_prompt.split_with_sizes([c.size for c in chunks]), strict=True):
            self._prompt_logprobs.collect(chunk, part, self._model.compute_logits)
        return self._model.compute_logits(of_sampled)

"""The executor that runs a real model: plan -> logits -> token ids."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from schedcore._core import BatchPlan
from schedcore.api.types import EngineRequest, TokenLogprobs
from worker import ops
from worker.batch.paged_pool import PagedPool
from worker.batch.staging import Parcel, to_device
from worker.forms.rounding import begin_kinds
from worker.forward.forward import Forward
from worker.forward.step_inputs import begin_changes, sampled_tokens
from worker.grammars.grammars import Grammars
from worker.models.decoder import DecoderModel
from worker.runner.executor import StepResult
from worker.runner.make_forward import make_forward
from worker.sampling.pooling import Pools, Span, span_indices
from worker.sampling.prompt_logprobs import Chunk, PromptLogprobs, token_indices
from worker.sampling.sampler import PlanNeeds, Sampler, TokenIds


class ModelRunner:
    """Implements Executor. Everything it keeps between steps: the pool, and what sampling needs per request."""

    def __init__(
        self,
        model: DecoderModel,
        pool: PagedPool,
        *,
        max_num_seqs: int,
        seed: int = 0,
        forward: Forward | None = None,
        grammars: Grammars | None = None,
    ) -> None:
        """forward: None: as make_forward() chooses. grammars: None: no request has one."""
        self._model, self._pool = model, pool
        self._forward = forward or make_forward(model, pool, max_num_seqs=max_num_seqs)
        self._sampler = Sampler(max_num_seqs, model.config.vocab_size, seed, grammars, pool.data.device)
        self._prompt_logprobs = PromptLogprobs()
        self._pools = Pools()
        self._parts = self._sampler, self._prompt_logprobs, self._pools
        self._all_are_plain = True  # open requests: the likeliest token is all that anybody wants

    def add_request(self, request: EngineRequest) -> None:
        for part in self._parts:
            part.add(request)
        self._all_are_plain = not any(part.has_requests for part in self._parts)

    def remove_request(self, request_id: int) -> None:
        for part in self._parts:
            part.remove(request_id)
        self._all_are_plain = not any(part.has_requests for part in self._parts)

    def execute(self, plan: BatchPlan) -> StepResult:
        begin_changes(plan, self._pool)
        begin_kinds(plan, self._pool)
        if self._all_are_plain:
            return StepResult(self._forward.greedy_tokens(plan))
        forced = self._sampler.forced_rows(plan)
        if forced is None:
            return self._result(plan, *self._sample(plan))
        return self._result(plan, *forced.complete(*self._sample(forced.rest)))

    def _sample(self, plan: BatchPlan) -> tuple[TokenIds, dict[int, TokenLogprobs] | None]:
        chunks, spans = self._prompt_logprobs.chunks(plan), self._pools.spans(plan)
        needs = self._sampler.needs(plan)
        if (needs is None or needs.corrects_greedy) and not (chunks or spans):
            return self._greedy_tokens(plan, needs), None
        with torch.inference_mode():
            drawing = None
            if chunks or spans:
                logits = self._run_with_prompts(plan, chunks, spans)
                if logits is None:  # any token will do
                    return np.zeros(len(plan.sample_seqs), np.int32), None
            else:
                drawing = self._drawing(plan, needs)
                logits = self._forward.logits(plan, sampled_tokens(plan), *([] if drawing is None else [drawing]))
            return self._sampler.sample(logits, plan, drawing, needs)

    def _greedy_tokens(self, plan: BatchPlan, needs: PlanNeeds | None) -> TokenIds:
        if needs is None:
            return self._forward.greedy_tokens(plan)
        token_ids, logits = self._forward.greedy(plan)
        self._sampler.correct(logits, token_ids, needs)
        return token_ids

    def _result(self, plan: BatchPlan, token_ids: TokenIds, logprobs: dict[int, TokenLogprobs] | None) -> StepResult:
        self._prompt_logprobs.fail_broken(plan, token_ids)
        complete = self._prompt_logprobs.take_complete(plan)
        vectors = self._pools.take_complete(plan, token_ids)
        return StepResult(token_ids, logprobs, complete, vectors, self._sampler.take_problems())

    def _drawing(self, plan: BatchPlan, needs: PlanNeeds | None) -> Parcel | None:
        """What goes to the device with the step's arrays, for the sampler."""
        return self._sampler.drawing(plan, needs) if ops.draws_on_device(self._pool.data) else None

    def _run_with_prompts(self, plan: BatchPlan, chunks: list[Chunk], spans: list[Span]) -> Tensor | None:
        """Logits of the tokens that sample; None if nobody wants any. Prompts' own are collected."""
        parts = sampled_tokens(plan), token_indices(chunks), span_indices(spans)
        wanted = np.concatenate(parts)
        needed = np.unique(wanted)
        hidden = self._forward.hidden(plan, needed)
        places = to_device(np.searchsorted(needed, wanted), hidden.device)
        of_sampled, of_chunks, of_spans = hidden[places].split_with_sizes([len(part) for part in parts])
        for chunk, part in zip(chunks, of_chunks.split_with_sizes([c.size for c in chunks]), strict=True):
            self._prompt_logprobs.collect(chunk, part, self._model.compute_logits)
        if spans:
            of_spans = self._model.project(of_spans)
        for span, part in zip(spans, of_spans.split_with_sizes([s.size for s in spans]), strict=True):
            self._pools.collect(span, part)
        if spans and self._pools.samples_nothing_else(plan):
            return None
        return self._model.compute_logits(of_sampled)

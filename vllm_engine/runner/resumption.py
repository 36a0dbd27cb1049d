"""A request that goes on where another engine's ended: to vLLM one that it has put out, and lets in again.

vLLM computes what it had put out from its prompt and its output so far, so its scheduler gets the request with both. A
V2 runner is told of all tokens anyway. A V1 runner takes whoever is new to have no output, and is told here, where it
runs in this process. Penalties and the least number of tokens then count what they did, grammars are where they were,
and of a seeded request's draws those that were made are made again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from vllm_engine.runner.model_runner import runner_here
from vllm_engine.steering import EXTRA, PRIOR


def prior_tokens(params: Any) -> list[int]:
    """params: vLLM's SamplingParams, or None."""
    extra: Mapping[str, Any] = getattr(params, "extra_args", None) or {}
    found: list[int] = extra.get(EXTRA, {}).get(PRIOR, [])
    return found


def begin_with_output(request: Any) -> None:
    """A vllm Request that the scheduler has not seen yet."""
    if prior := prior_tokens(request.sampling_params):
        request.append_output_token_ids(prior)
        request.num_preemptions = 1  # else vLLM takes what it finds cached to be of the prompt alone


def install_resumption(core: Any) -> bool:
    """In a vllm EngineCore, before its first request. False: its runner cannot be told what a new request has said."""
    if not core.scheduler.use_v2_model_runner:
        runner = runner_here(core)
        if not hasattr(runner, "input_batch"):
            return False
        _tell_runner(runner)
    _advance_grammars(core.structured_output_manager)
    return True


def draw_again(generator: torch.Generator, num_draws: int, vocab_size: int) -> None:
    """What vLLM 0.32 takes of a request's generator for each token: on CPU one number, else one for each token id."""
    if generator.device.type == "cpu":
        torch.randint(0, 2**31, (num_draws,), generator=generator, dtype=torch.long)
        return
    row = torch.empty(vocab_size, device=generator.device)
    for _ in range(num_draws):
        row.exponential_(generator=generator)


def _tell_runner(runner: Any) -> None:
    batch, vocab_size = runner.input_batch, runner.model_config.get_vocab_size()
    add_request = batch.add_request

    def adding(state: Any) -> Any:
        """state: vLLM's CachedRequestState, which comes again, with its output, when it was put out here."""
        if not state.output_token_ids and (prior := prior_tokens(state.sampling_params)):
            state.output_token_ids = list(prior)
            if state.generator is not None:
                draw_again(state.generator, len(prior), vocab_size)
        return add_request(state)

    batch.add_request = adding


def _advance_grammars(manager: Any) -> None:
    create = manager._create_grammar

    def creating(request: Any) -> Any:
        grammar = create(request)
        prior = prior_tokens(request.sampling_params)
        if prior and not grammar.accept_tokens(request.request_id, prior):
            raise ValueError("the grammar does not allow the tokens that are there already")
        return grammar

    manager._create_grammar = creating

"""A request of ours as vLLM wants it, and what vLLM says of it as ours."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from vllm.lora.request import LoRARequest
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest
from vllm.v1.engine import FinishReason as VllmFinishReason

from schedcore.api.types import EngineError, EngineRequest, ErrorCode, FinishReason, TokenDelta, TokenLogprobs
from vllm_engine.grammars import structured_outputs
from vllm_engine.images.image_prompts import GrownPrompt
from vllm_engine.steering import EXTRA, PRIOR

MOST_BIAS = 100.0  # that vLLM takes, either way
_FINISH_REASONS = {
    None: FinishReason.NONE,
    VllmFinishReason.STOP: FinishReason.STOP,
    VllmFinishReason.LENGTH: FinishReason.LENGTH,
    VllmFinishReason.ABORT: FinishReason.ABORT,
    VllmFinishReason.ERROR: FinishReason.ERROR,
    VllmFinishReason.REPETITION: FinishReason.STOP,
}
_FAILED = "vLLM ended the request with an error of its own; its log says more"


def lora_requests(adapters: Mapping[str, str]) -> dict[str, LoRARequest]:
    """By name. adapters: their folders."""
    return {name: LoRARequest(name, number + 1, folder) for number, (name, folder) in enumerate(adapters.items())}


def users_prompt(request: EngineRequest) -> list[int]:
    """Without the tokens that another engine gave."""
    return request.prompt_token_ids[: len(request.prompt_token_ids) - request.num_prior_tokens]


def to_vllm(
    request: EngineRequest,
    name: str,
    arrival_time: float,
    adapter: LoRARequest | None = None,
    grown: GrownPrompt | None = None,
) -> EngineCoreRequest:
    """name: unique in the engine. arrival_time: by time.time(). grown: the user's prompt, where it has images. Raises
    ValueError: vLLM refuses the parameters."""
    ours = request.sampling
    targets = request.targets
    prompt = users_prompt(request)
    max_tokens = request.max_tokens + request.num_prior_tokens
    extra = {
        "class": int(request.request_class),
        "priority": request.priority,
        "age_ms": request.age_ms,
        "tenant": request.tenant,
        "session": bool(request.session_id),
        "ttft_ms": targets.ttft_ms,
        "itl_ms": targets.itl_ms,
        "tpot_ms": targets.tpot_ms,
    }
    if request.num_prior_tokens:
        extra |= {PRIOR: request.prompt_token_ids[len(prompt) :], "pause_ms": request.pause_ms}
    params = SamplingParams(
        temperature=ours.temperature,
        top_p=ours.top_p,
        top_k=max(0, ours.top_k),
        min_p=ours.min_p,
        repetition_penalty=ours.repetition_penalty,
        presence_penalty=ours.presence_penalty,
        frequency_penalty=ours.frequency_penalty,
        logit_bias={token: max(-MOST_BIAS, bias) for token, bias in ours.logit_bias.items()} or None,
        seed=None if ours.seed is None else ours.seed % 2**63,
        logprobs=ours.num_logprobs,
        prompt_logprobs=ours.num_prompt_logprobs,
        max_tokens=max_tokens,
        min_tokens=min(request.min_tokens, max_tokens),
        stop_token_ids=list(request.stop_token_ids),
        ignore_eos=True,  # the gateway names the end-of-sequence tokens among the stop tokens
        detokenize=False,
        structured_outputs=structured_outputs(request.grammar),
        extra_args={EXTRA: extra},
    )
    return EngineCoreRequest(
        request_id=name,
        prompt_token_ids=prompt if grown is None else grown.token_ids,
        mm_features=None if grown is None else grown.features,
        sampling_params=params,
        pooling_params=None,
        arrival_time=arrival_time,
        lora_request=adapter,
        cache_salt=request.cache_salt or None,
        data_parallel_rank=None,
        priority=request.priority,
        external_req_id=name,
    )


def to_delta(request_id: int, output: EngineCoreOutput, prompt: list[int], num_grown: int | None = None) -> TokenDelta:
    """prompt: its token ids, for logprobs of them. num_grown: that it has with its images."""
    reason = _FINISH_REASONS[output.finish_reason]
    tokens = list(output.new_token_ids)
    stats = output.prefill_stats
    prompt_logprobs = output.new_prompt_logprobs_tensors
    return TokenDelta(
        request_id,
        tokens,
        reason,
        tokens[-1] if reason is FinishReason.STOP and tokens else None,
        0 if stats is None else stats.num_cached_tokens,
        None if output.new_logprobs is None else _logprobs(output.new_logprobs, tokens),
        None if prompt_logprobs is None else [None, *_logprobs(prompt_logprobs, prompt[1:])],
        EngineError(ErrorCode.INTERNAL, _FAILED) if reason is FinishReason.ERROR else None,
        num_prompt_tokens=None if stats is None else num_grown,
    )


def _logprobs(columns: Any, tokens: list[int]) -> list[TokenLogprobs]:
    """columns: ids and logprobs [positions, 1 + n], of the token itself first, and its rank [positions]."""
    ids, logprobs, ranks = (column.tolist() for column in columns[:3])
    return [
        TokenLogprobs(
            token,
            row_logprobs[0],
            int(rank),
            sorted(
                ((i, p) for i, p in zip(row_ids[1:], row_logprobs[1:], strict=True) if math.isfinite(p)),
                key=lambda entry: -entry[1],
            ),
        )
        for token, row_ids, row_logprobs, rank in zip(tokens, ids, logprobs, ranks, strict=False)
    ]

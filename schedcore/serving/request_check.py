"""What is wrong with a request, before the core sees it: everything that would break a step or mean nothing.

The gateway validates in the words of its API; this is the engine's own door.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from schedcore.api.types import EngineRequest, ImageLimits, SamplingParams

INT32_MAX = 2**31 - 1


def find_problem(
    request: EngineRequest, vocab_size: int, adapters: Collection[str] = (), images: ImageLimits | None = None
) -> str | None:
    """One sentence for the client, or None. adapters: that the engine has, by name. images: None: it takes none."""
    if request.adapter and request.adapter not in adapters:
        return f"this engine has no adapter {request.adapter!r}"
    prompt = request.prompt_token_ids
    if not prompt:
        return "the prompt is empty"
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        return f"prompt token ids must be in [0, {vocab_size})"
    if request.max_tokens < 1:
        return f"max_tokens must be at least 1, not {request.max_tokens}"
    if request.pooling is not None and (request.max_tokens != 1 or request.grammar is not None):
        return "a request for a vector has max_tokens 1 and no grammar"
    if request.pooling is not None and (request.pooling.num_dimensions or 1) < 1:
        return "a vector has at least one dimension"
    if not 0 <= request.num_prior_tokens < len(prompt):
        return f"num_prior_tokens must be in [0, {len(prompt)}), not {request.num_prior_tokens}"
    if request.num_prior_tokens and (request.pooling is not None or request.sampling.num_prompt_logprobs is not None):
        return "what is said of the prompt, a vector or log-probabilities, does not go on after prior tokens"
    if request.min_tokens < 0:
        return f"min_tokens must not be negative, not {request.min_tokens}"
    if any(token < 0 or token > INT32_MAX for token in request.stop_token_ids):
        return "stop_token_ids must be token ids"
    if abs(request.priority) > INT32_MAX:
        return "priority is out of range"
    for name in ("ttft", "itl", "tpot"):
        target = getattr(request.targets, f"{name}_ms")
        if target is not None and not 0 < target < math.inf:
            return f"{name}_target_ms must be positive, not {target}"
    if request.grammar is not None and not any(0 <= token < vocab_size for token in request.stop_token_ids):
        return "a grammar needs a stop token, which ends the output where it may end"
    for name in ("age_ms", "pause_ms"):
        if not math.isfinite(getattr(request, name)):
            return f"{name} must be finite"
    if request.images and (problem := _image_problem(request, images)) is not None:
        return problem
    return _sampling_problem(request.sampling, vocab_size)


def _image_problem(request: EngineRequest, limits: ImageLimits | None) -> str | None:
    if limits is None:
        return "this engine takes no images"
    if len(request.images) > limits.max_images:
        return f"at most {limits.max_images} images are taken, not {len(request.images)}"
    if max(map(len, request.images)) > limits.max_image_bytes:
        return f"an image has at most {limits.max_image_bytes} bytes"
    if request.pooling is not None or request.sampling.num_prompt_logprobs is not None:
        return "what is said of the prompt, a vector or log-probabilities, is not said of one with images"
    return None


def _sampling_problem(params: SamplingParams, vocab_size: int) -> str | None:
    if not 0 <= params.temperature < math.inf:
        return f"temperature must not be negative, not {params.temperature}"
    if not 0 < params.top_p <= 1:
        return f"top_p must be in (0, 1], not {params.top_p}"
    if not 0 <= params.min_p <= 1:
        return f"min_p must be in [0, 1], not {params.min_p}"
    if not -1 <= params.top_k <= INT32_MAX:
        return f"top_k must be positive, or 0 or -1 for all, not {params.top_k}"
    if not 0 < params.repetition_penalty < math.inf:
        return f"repetition_penalty must be positive, not {params.repetition_penalty}"
    for name in ("presence_penalty", "frequency_penalty"):
        if not math.isfinite(getattr(params, name)):
            return f"{name} must be finite"
    if any(not 0 <= token < vocab_size for token in params.logit_bias):
        return f"logit_bias must name token ids in [0, {vocab_size})"
    if any(math.isnan(bias) or bias == math.inf for bias in params.logit_bias.values()):
        return "logit_bias values must be numbers"
    words = [("allowed_token_ids", params.allowed_token_ids or []), ("logprob_token_ids", params.logprob_token_ids)]
    for name, ids in [*words, *(("bad_words", word) for word in params.bad_words)]:
        if any(not 0 <= token < vocab_size for token in ids):
            return f"{name} must name token ids in [0, {vocab_size})"
    if params.allowed_token_ids == []:
        return "allowed_token_ids must not be empty"
    if [] in params.bad_words:
        return "a bad word has at least one token"
    for name in ("num_logprobs", "num_prompt_logprobs"):
        number = getattr(params, name)
        if number is not None and not 0 <= number <= vocab_size:
            return f"{name} must be in [0, {vocab_size}], not {number}"
    return None

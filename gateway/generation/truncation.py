"""Prompts that are cut to a number of tokens: `truncate_prompt_tokens`."""

from __future__ import annotations

from gateway.protocol.generation import GenerationRequest

MAX_TOKENS = 2**18  # of one text or list: more make an answer that would have to be made in parts


def most_encoded(request: GenerationRequest, max_model_len: int) -> int:
    """Tokens that a prompt may have before it is cut."""
    return max_model_len if request.max_prompt_tokens is None else max(MAX_TOKENS, max_model_len)


def truncated(
    request: GenerationRequest, prompts: list[list[int]], max_tokens: int | None, max_model_len: int
) -> list[list[int]]:
    """max_tokens: of the answer, for which the context has to have room; None: at least one."""
    wanted = request.max_prompt_tokens
    if wanted is None:
        return prompts
    room = max(1, max_model_len - (max_tokens or 1))
    most = room if wanted == -1 else wanted
    if request.truncation_side == "right":
        return [prompt[:most] for prompt in prompts]
    return [prompt[-most:] for prompt in prompts]

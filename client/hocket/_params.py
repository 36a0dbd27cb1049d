"""What a caller may ask for. Left out or None means: the server's default."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from ._types import Message

# A string is one user message; a message is a Message or a dict with role and content.
Messages = str | Sequence[Message | Mapping[str, Any]]
# Text or token ids, one prompt or several.
Prompt = str | Sequence[int] | Sequence[str] | Sequence[Sequence[int]]


class GenerationParams(TypedDict, total=False):
    """Common to chat and completions. `extra_body` is merged into the request, for what has no name here yet.

    Targets: time to the first token, between any two tokens, and per token after the first, all of them together.
    """

    model: str | None
    max_tokens: int | None
    min_tokens: int | None
    n: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[int, float] | Mapping[str, float] | None
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop_str_in_output: bool | None
    skip_special_tokens: bool | None
    return_token_ids: bool | None
    priority: int | None
    ttft_target_ms: float | None
    itl_target_ms: float | None
    tpot_target_ms: float | None
    service_tier: Literal["auto", "default", "flex", "priority"] | None
    user: str | None
    session_id: str | None
    prompt_cache_key: str | None
    cache_salt: str | None
    extra_body: Mapping[str, Any] | None


class ChatParams(GenerationParams, total=False):
    """`logprobs=True, top_logprobs=5`: of each output token, and of the five likeliest."""

    max_completion_tokens: int | None
    logprobs: bool | None
    top_logprobs: int | None


AdvisoryEvent = Literal["typing", "agent_step", "cancel"]


class AdvisoryParams(TypedDict, total=False):
    """`eta_ms`: the request comes no earlier; `lease_ms`: how long to hold its cache.

    `messages` and `draft`: what the next prompt will begin with, the draft being the user's unfinished message; then
    the server computes what is missing of it. `prompt` is the same for completions.
    """

    eta_ms: float | None
    lease_ms: float | None
    messages: Messages | None
    draft: str | None
    prompt: str | Sequence[int] | None
    model: str | None
    cache_salt: str | None


class CompletionParams(GenerationParams, total=False):
    """`logprobs=5`: of each output token, and of the five likeliest. `echo`: the prompt comes first."""

    logprobs: int | None
    echo: bool | None

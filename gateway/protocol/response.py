"""What both endpoints say about a response: which one it is, and how many tokens it took."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """What every object of one response repeats."""

    id: str
    created: int  # Unix seconds
    model: str
    service_tier: str | UnsetType = UNSET


def response_head(prefix: str, model: str, service_tier: str | None) -> ResponseHead:
    return ResponseHead(f"{prefix}-{secrets.token_hex(16)}", int(time.time()), model, service_tier or UNSET)


class PromptTokensDetails(msgspec.Struct, frozen=True):
    cached_tokens: int


class PromptLogprob(msgspec.Struct, frozen=True):
    """vLLM's, of one token at one place of the prompt."""

    logprob: float
    rank: int  # 1 is the likeliest
    decoded_token: str


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int  # thinking, its marks included


class Usage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # of models that think


def usage(
    num_prompt_tokens: int, num_output_tokens: int, num_cached_tokens: int, num_reasoning_tokens: int | None = None
) -> Usage:
    """num_reasoning_tokens: None: the model does not think."""
    return Usage(
        num_prompt_tokens,
        num_output_tokens,
        num_prompt_tokens + num_output_tokens,
        PromptTokensDetails(num_cached_tokens),
        UNSET if num_reasoning_tokens is None else CompletionTokensDetails(num_reasoning_tokens),
    )

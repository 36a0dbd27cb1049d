"""`POST /v1/completions`: request and response."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import MAX_TOP_LOGPROBS, GenerationRequest, TokenId, check_generation
from gateway.protocol.response import Usage

MAX_TOTAL_CHOICES = 1024  # prompts times n, in one request

Prompt = str | list[int]


class CompletionRequest(GenerationRequest, frozen=True, kw_only=True):
    prompt: str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | None = None
    add_special_tokens: bool | None = None  # default: true
    suffix: str | None = None
    prompt_embeds: Any = None

    @property
    def num_requests(self) -> int:
        return len(self.prompts()) * self.num_choices

    @property
    def num_logprobs(self) -> int | None:
        return 0 if self.logprob_token_ids and self.logprobs is not None else self.logprobs

    def prompts(self) -> list[Prompt]:
        """One prompt per element, all text or all token ids. Raises InvalidRequestError on a mixture."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        if isinstance(self.prompt[0], int):
            return [_all(self.prompt, int)]
        kind: type = type(self.prompt[0])
        return _all(self.prompt, kind)


def _all(items: list[Any], kind: type) -> list[Any]:
    for i, item in enumerate(items):
        if not isinstance(item, kind):
            raise InvalidRequestError(
                "'prompt' must be text, token ids, or a list of either, not a mixture.", param=f"prompt[{i}]"
            )
    return items


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {"suffix": ("",), "prompt_embeds": ([],)}
_decoder = msgspec.json.Decoder(CompletionRequest)


def decode_completion(body: bytes) -> CompletionRequest:
    """Raises InvalidRequestError."""
    request = decode_json(_decoder, body)
    check_generation(request, _UNSUPPORTED)
    if request.logprob_token_ids and request.logprobs is None:
        raise InvalidRequestError("'logprob_token_ids' is only allowed with 'logprobs'.", param="logprob_token_ids")
    if request.num_requests > MAX_TOTAL_CHOICES:
        raise InvalidRequestError(f"'prompt' times 'n' makes more than {MAX_TOTAL_CHOICES} choices.", param="prompt")
    return request


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Parallel lists, one entry per token. The first prompt token of an echo has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[msgspec.Raw | None]  # each an object: token -> log-probability
    text_offset: list[int]


class CompletionChoice(msgspec.Struct, frozen=True):
    index: int
    text: str
    finish_reason: str | None
    logprobs: CompletionLogprobs | None = None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[msgspec.Raw | None] | UnsetType | None = UNSET


class CompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    service_tier: str | UnsetType = UNSET
    usage: Usage | UnsetType | None = UNSET


class CompletionResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    service_tier: str | UnsetType = UNSET

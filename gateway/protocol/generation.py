"""The parameters that chat and text completions share, and how they become the engine's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.errors import InvalidRequestError
from schedcore.types import SamplingParams

MAX_CHOICES = 128  # n
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256  # of one stop string

Int32 = Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Name = Annotated[str, Meta(max_length=512)]
ServiceTier = Literal["auto", "default", "flex", "priority"]


class StreamOptions(msgspec.Struct, frozen=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None  # vLLM: usage so far in every chunk


class GenerationRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints understand. null means the default everywhere, unknown fields are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: TokenCount | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    seed: Int64 | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: dict[TokenId, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    service_tier: ServiceTier | None = None
    user: Name | None = None
    session_id: Name | None = None  # the conversation that the request belongs to
    prompt_cache_key: Name | None = None  # the same by OpenAI's name

    # vLLM's extras
    ignore_eos: bool | None = None
    min_tokens: TokenCount | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=256)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    cache_salt: Name | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Int32 | None = None
    return_token_ids: bool | None = None

    # Known, but not built: refused, because ignoring them would change what the answer means
    best_of: int | None = None
    use_beam_search: bool | None = None
    allowed_token_ids: Any = None
    bad_words: Any = None
    guided_json: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    structured_outputs: Any = None
    logits_processors: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    response_format: Any = None

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


UNSUPPORTED = (
    "use_beam_search",
    "allowed_token_ids",
    "bad_words",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "structured_outputs",
    "logits_processors",
    "prompt_logprobs",
    "truncate_prompt_tokens",
)


def check_generation(request: GenerationRequest, unsupported: Iterable[str] = ()) -> None:
    """What types alone cannot say. Raises InvalidRequestError."""
    for name in (*UNSUPPORTED, *unsupported):
        if getattr(request, name):
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")
    if request.best_of is not None and request.best_of != request.num_choices:
        raise InvalidRequestError(
            "'best_of' must equal 'n': this server returns every choice it generates.", param="best_of"
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    _check_response_format(request.response_format)


def _check_response_format(response_format: Any) -> None:
    if response_format is None:
        return
    kind = response_format.get("type") if isinstance(response_format, dict) else None
    if kind != "text":
        raise InvalidRequestError(
            '\'response_format\' other than {"type": "text"} is not supported by this server.',
            param="response_format",
            code="unsupported",
        )


def sampling_params(
    request: GenerationRequest,
    defaults: SamplingParams,
    choice: int,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
) -> SamplingParams:
    """For choice number `choice` of n. Choices of a seeded request get consecutive seeds, so that they differ."""

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    return SamplingParams(
        temperature=given(request.temperature, defaults.temperature),
        top_p=given(request.top_p, defaults.top_p),
        top_k=max(0, given(request.top_k, defaults.top_k)),
        min_p=given(request.min_p, defaults.min_p),
        repetition_penalty=given(request.repetition_penalty, defaults.repetition_penalty),
        presence_penalty=given(request.presence_penalty, 0.0),
        frequency_penalty=given(request.frequency_penalty, 0.0),
        logit_bias=request.logit_bias or {},
        seed=None if request.seed is None else (request.seed + choice) % 2**63,
        num_logprobs=num_logprobs,
        num_prompt_logprobs=num_prompt_logprobs,
    )

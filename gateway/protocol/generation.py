"""The parameters that chat and text completions share, and how they become the engine's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.output.output_format import (
    AskedGrammar,
    Choices,
    ResponseFormat,
    Schema,
    StructuredOutputs,
    from_response_format,
    from_structured_outputs,
    grammars_of,
)
from schedcore.api.types import SamplingParams, Targets

MAX_CHOICES = 128  # n
MAX_TOP_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256  # of one stop string
MAX_TARGET_MS = 86_400_000  # a day
MAX_BAD_WORDS = 256
MAX_WORD_CHARACTERS = 256
MAX_NAMED_TOKENS = 128  # whose log-probabilities are shown

Int32 = Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
BadWord = Annotated[str, Meta(min_length=1, max_length=MAX_WORD_CHARACTERS)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
TargetMs = Annotated[float, Meta(gt=0, le=MAX_TARGET_MS)]
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
    return_tokens_as_token_ids: bool | None = None  # tokens among log-probabilities as "token_id:65"
    prompt_logprobs: Annotated[int, Meta(ge=0, le=MAX_TOP_LOGPROBS)] | Literal[False] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_words: Annotated[list[BadWord], Meta(max_length=MAX_BAD_WORDS)] | None = None
    logprob_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_NAMED_TOKENS)] | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | Literal[False] | None = None  # -1: what fits
    truncation_side: Literal["left", "right"] | None = None  # that is cut off; default: left

    # The answer's form: one of them at most
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None

    # Ours: what this request is to see, each instead of the API key's or the server's. Nothing for offline work
    ttft_target_ms: TargetMs | None = None
    itl_target_ms: TargetMs | None = None
    tpot_target_ms: TargetMs | None = None

    # Known, but not built: refused, because ignoring them would change what the answer means
    best_of: int | None = None
    use_beam_search: bool | None = None
    logits_processors: Any = None
    spaces_between_special_tokens: bool | None = None
    thinking_token_budget: Any = None
    repetition_detection: Any = None
    watermarking: Any = None
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    vllm_xargs: Any = None
    return_token_offsets: Any = None
    detokenize: bool | None = None
    length_penalty: float | None = None  # of beams

    @property
    def is_background(self) -> bool:
        """Nobody waits for the answer: its client asks for it later."""
        return False

    @property
    def num_choices(self) -> int:
        return self.n or 1

    @property
    def num_requests(self) -> int:
        """To the engine: one for each choice of each prompt."""
        return self.num_choices

    @property
    def targets(self) -> Targets:
        return Targets(self.ttft_target_ms, self.itl_target_ms, self.tpot_target_ms)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def num_prompt_logprobs(self) -> int | None:
        """False is vLLM's other word for none."""
        return None if isinstance(self.prompt_logprobs, bool) else self.prompt_logprobs

    @property
    def max_prompt_tokens(self) -> int | None:
        """That a prompt is cut to; -1: to what fits. None: it is not cut."""
        return None if isinstance(self.truncate_prompt_tokens, bool) else self.truncate_prompt_tokens

    @property
    def includes_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def has_continuous_usage(self) -> bool:
        return self.includes_usage and bool(self.stream_options and self.stream_options.continuous_usage_stats)


# Values besides null that ask for nothing, by field: any other asks for what this server cannot do
UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "use_beam_search": (False,),
    "logits_processors": ([],),
    "spaces_between_special_tokens": (True,),
    "thinking_token_budget": (),
    "repetition_detection": (False,),
    "watermarking": (False,),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
    "vllm_xargs": ({},),
    "return_token_offsets": (False,),
    "detokenize": (True,),
    "length_penalty": (1, 1.0),
}


def check_generation(request: GenerationRequest, unsupported: Mapping[str, tuple[Any, ...]]) -> None:
    """What types alone cannot say. `unsupported` is the endpoint's own, as UNSUPPORTED. Raises InvalidRequestError."""
    for name, off in (*UNSUPPORTED.items(), *unsupported.items()):
        if not _is_off(getattr(request, name), off):
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")
    if request.best_of is not None and request.best_of != request.num_choices:
        raise InvalidRequestError(
            "'best_of' must equal 'n': this server returns every choice it generates.", param="best_of"
        )
    if request.stream_options is not None and not request.stream:
        raise InvalidRequestError("'stream_options' is only allowed when 'stream' is true.", param="stream_options")
    if request.num_prompt_logprobs is not None and request.stream:
        raise InvalidRequestError(
            "'prompt_logprobs' come with answers in one piece, not with 'stream'.", param="prompt_logprobs"
        )
    if request.max_prompt_tokens == 0:
        raise InvalidRequestError(
            "'truncate_prompt_tokens' must be at least 1, or -1 for what fits.", param="truncate_prompt_tokens"
        )
    asked_grammar(request)


def asked_grammar(request: GenerationRequest, format_param: str = "response_format") -> AskedGrammar | None:
    """What the answer has to be. format_param: where `response_format` was said. Raises InvalidRequestError."""
    guided = StructuredOutputs(
        json=request.guided_json,
        regex=request.guided_regex,
        choice=request.guided_choice,
        grammar=request.guided_grammar,
    )
    asked = [
        *from_response_format(request.response_format, format_param),
        *from_structured_outputs(request.structured_outputs),
        *grammars_of(guided, "guided_"),
    ]
    if len(asked) > 1:
        first, second = asked[0].param, asked[1].param
        raise InvalidRequestError(f"'{first}' and '{second}' exclude each other.", param=second)
    return asked[0] if asked else None


def _is_off(value: Any, off: tuple[Any, ...]) -> bool:
    """0 is not false here: it is a number that somebody asks for."""
    return value is None or any(type(value) is type(other) and value == other for other in off)


def sampling_params(
    request: GenerationRequest,
    defaults: SamplingParams,
    choice: int,
    num_logprobs: int | None,
    num_prompt_logprobs: int | None = None,
    bad_words: list[list[int]] | None = None,
) -> SamplingParams:
    """For choice number `choice` of n. Choices of a seeded request get consecutive seeds, so that they differ.

    bad_words: as tokens.
    """

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
        logprob_token_ids=(request.logprob_token_ids or []) if num_logprobs is not None else [],
        allowed_token_ids=request.allowed_token_ids,
        bad_words=bad_words or [],
    )

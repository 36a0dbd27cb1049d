"""A validated request and its prompts' token ids -> the engine's requests, or an error that names the parameter."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.choice import Choice, ChoiceOptions
from gateway.classify import Profile
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import GenerationRequest, sampling_params
from gateway.protocol.response import Usage, usage
from gateway.services import Services
from gateway.stop_strings import StopStrings
from schedcore.types import EngineInfo, EngineRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What differs between the endpoints."""

    prompt_param: str  # the parameter that the prompts came from
    prompts: list[list[int]]
    max_tokens: int | None  # None: until the context is full
    max_tokens_param: str = "max_tokens"
    num_logprobs: int | None
    num_prompt_logprobs: int | None = None
    discards_output: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the engine is asked, and the choices that its tokens will become. Choice i belongs to request i."""

    profile: Profile
    choices: list[Choice]
    requests: list[EngineRequest]
    prompts: list[list[int]]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(map(len, self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def usage(self) -> Usage:
        """So far. A prompt counts once, however many choices it has."""
        cached = {choice.prompt_index: choice.num_cached_tokens for choice in reversed(self.choices)}
        return usage(self.num_prompt_tokens, self.num_output_tokens, sum(cached.values()))


def prepare(
    services: Services, request: GenerationRequest, wish: Wish, profile: Profile, *, arrived_at: float
) -> Prepared:
    """Choice i * n + j is choice j of prompt i. Raises InvalidRequestError or UnavailableError."""
    info = services.ready_engine()
    _check_ids(request, wish, info)
    options = _options(request, wish)
    choices: list[Choice] = []
    requests: list[EngineRequest] = []
    for i, prompt in enumerate(wish.prompts):
        max_tokens = _max_tokens(len(prompt), wish, info.max_model_len)
        if (request.min_tokens or 0) > max_tokens:
            raise InvalidRequestError(f"'min_tokens' exceeds the {max_tokens} tokens allowed.", param="min_tokens")
        for j in range(request.num_choices):
            detokenizer = services.tokenizer.detokenizer(prompt, request.skip_special_tokens is not False)
            choices.append(Choice(len(choices), i, detokenizer, options))
            requests.append(
                EngineRequest(
                    request_id=next(services.request_ids),
                    prompt_token_ids=prompt,
                    max_tokens=max_tokens,
                    sampling=sampling_params(
                        request, services.sampling, j, wish.num_logprobs, wish.num_prompt_logprobs
                    ),
                    min_tokens=request.min_tokens or 0,
                    stop_token_ids=_stop_token_ids(request, services.stop_token_ids),
                    request_class=profile.request_class,
                    priority=profile.priority,
                    ttft_target_ms=profile.ttft_target_ms,
                    itl_target_ms=profile.itl_target_ms,
                    age_ms=max(0.0, (services.clock() - arrived_at) * 1e3),
                    tenant=profile.tenant,
                    session_id=profile.session_id,
                    cache_salt=profile.cache_salt,
                )
            )
    return Prepared(profile, choices, requests, wish.prompts)


def _options(request: GenerationRequest, wish: Wish) -> ChoiceOptions:
    strings = request.stop_strings
    return ChoiceOptions(
        stop_strings=StopStrings(strings) if strings else None,
        includes_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        keeps_logprobs=wish.num_logprobs is not None,
        keeps_token_ids=bool(request.return_token_ids),
        discards_output=wish.discards_output,
    )


def _stop_token_ids(request: GenerationRequest, ends_of_sequence: tuple[int, ...]) -> list[int]:
    own = request.stop_token_ids or []
    return own if request.ignore_eos else list(dict.fromkeys([*ends_of_sequence, *own]))


def _check_ids(request: GenerationRequest, wish: Wish, info: EngineInfo) -> None:
    named = {
        "logit_bias": request.logit_bias or (),
        "stop_token_ids": request.stop_token_ids or (),
    }
    for param, ids in named.items():
        if ids and max(ids) >= info.vocab_size:
            raise InvalidRequestError(
                f"'{param}' names token {max(ids)}, but the vocabulary has {info.vocab_size} tokens.", param=param
            )
    for prompt in wish.prompts:
        if not prompt:
            raise InvalidRequestError("The prompt is empty.", param=wish.prompt_param)
        if max(prompt) >= info.vocab_size:
            raise InvalidRequestError(
                f"The prompt holds token {max(prompt)}, but the vocabulary has {info.vocab_size} tokens.",
                param=wish.prompt_param,
            )


def _max_tokens(num_prompt_tokens: int, wish: Wish, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"This model's context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens}.",
            param=wish.prompt_param,
            code="context_length_exceeded",
        )
    if wish.max_tokens is None:
        return room
    if wish.max_tokens < 1:
        raise InvalidRequestError(f"'{wish.max_tokens_param}' must be at least 1.", param=wish.max_tokens_param)
    if wish.max_tokens > room:
        raise InvalidRequestError(
            f"This model's context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens} and "
            f"'{wish.max_tokens_param}' asks for {wish.max_tokens} more; at most {room} fit.",
            param=wish.max_tokens_param,
            code="context_length_exceeded",
        )
    return wish.max_tokens

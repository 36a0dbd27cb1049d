"""A validated request and its prompts' token ids -> the engine's requests, or an error that names the parameter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gateway.engine.classify import Profile
from gateway.generation.answer_reader import ALL_CONTENT, Reading
from gateway.generation.choice import Choice, ChoiceOptions
from gateway.generation.serving import Serving
from gateway.generation.thinking_count import ThinkingCount
from gateway.generation.truncation import truncated
from gateway.model.stop_strings import StopStrings
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import GenerationRequest, sampling_params
from gateway.protocol.output.output_format import AskedGrammar
from gateway.protocol.response import Usage, usage
from schedcore.api.types import (
    ALLOWED_TOKENS,
    BAD_WORDS,
    GENERATION,
    LOGPROB_TOKENS,
    PROMPT_LOGPROBS,
    EngineInfo,
    EngineRequest,
    Pooling,
    SamplingParams,
)

MAX_SUBMITTED_TOKENS = 2**22  # of all choices of a request: each is a request to the engine
MAX_LOGPROBS = 2**18  # of an answer in one piece, alternatives included
_NO_SAMPLING = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSpec:
    """What differs between the endpoints."""

    prompt_param: str  # the parameter that the prompts came from
    prompts: list[list[int]]
    max_tokens: int | None  # None: until the context is full
    max_tokens_param: str = "max_tokens"
    num_logprobs: int | None
    num_prompt_logprobs: int | None = None
    discards_output: bool = False
    grammar: AskedGrammar | None = None
    shows_special_tokens: bool = False  # whatever the request says: something in the text is told by them
    pooling: Pooling | None = None  # vectors are wanted, and no tokens
    reading: Reading = ALL_CONTENT  # its thinking is counted
    images: list[bytes] = field(default_factory=list)  # of the prompt, which is the only one then


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """What the engine is asked, and the choices that its tokens will become. Choice i belongs to request i."""

    profile: Profile
    choices: list[Choice]
    requests: list[EngineRequest]
    prompts: list[list[int]]
    reading: Reading = ALL_CONTENT
    thoughts: list[ThinkingCount] = field(default_factory=list)  # of each choice, if the model thinks

    @property
    def num_prompt_tokens(self) -> int:
        """An engine says how many they are with their images, when it has begun."""
        grown = {c.prompt_index: c.num_prompt_tokens for c in self.choices if c.num_prompt_tokens is not None}
        return sum(grown.get(i, len(prompt)) for i, prompt in enumerate(self.prompts))

    @property
    def num_output_tokens(self) -> int:
        return sum(choice.num_tokens for choice in self.choices)

    def usage(self, num_output_tokens: int | None = None) -> Usage:
        """So far, or after that many output tokens. A prompt counts once, however many choices it has."""
        cached = {choice.prompt_index: choice.num_cached_tokens for choice in reversed(self.choices)}
        num = self.num_output_tokens if num_output_tokens is None else num_output_tokens
        return usage(self.num_prompt_tokens, num, sum(cached.values()), self._num_reasoning_tokens(num))

    def _num_reasoning_tokens(self, num_output_tokens: int) -> int | None:
        """What came after a stop string counts nowhere."""
        pairs = zip(self.thoughts, self.choices, strict=False)
        counted = sum(min(thought.num_tokens, choice.num_tokens) for thought, choice in pairs)
        return min(counted, num_output_tokens) if self.thoughts else None


def prepare(
    serving: Serving, request: GenerationRequest, spec: PromptSpec, profile: Profile, *, arrived_at: float
) -> PreparedRequest:
    """Choice i * n + j is choice j of prompt i. Raises InvalidRequestError or UnavailableError."""
    info, model = serving.ready_engine(), serving.model
    spec = replace(spec, prompts=truncated(request, spec.prompts, spec.max_tokens, info.max_model_len))
    _check_ids(request, spec, info)
    _check_engine(request, spec, info)
    _check_sizes(request, spec)
    stop_token_ids = _stop_token_ids(request, spec, model.stop_token_ids)
    bad_words = model.tokenizer.word_tokens(request.bad_words or ())
    _check_allowed(request, bad_words, stop_token_ids)
    skips_special_tokens = request.skip_special_tokens is not False and not spec.shows_special_tokens
    options = _options(request, spec)
    adapter = request.model if request.model is not None and request.model in model.adapters else ""
    choices: list[Choice] = []
    requests: list[EngineRequest] = []
    thoughts: list[ThinkingCount] = []
    for i, prompt in enumerate(spec.prompts):
        max_tokens = _max_tokens(len(prompt), spec, info.max_model_len)
        if spec.max_tokens is None:
            max_tokens = max(1, min(max_tokens, _most_tokens(request, spec)))
        if (request.min_tokens or 0) > max_tokens:
            raise InvalidRequestError(f"'min_tokens' exceeds the {max_tokens} tokens allowed.", param="min_tokens")
        for j in range(request.num_choices):
            detokenizer = model.tokenizer.detokenizer(prompt, skips_special_tokens)
            if spec.reading.thinking is not None:
                detokenizer = ThinkingCount(detokenizer, spec.reading.thinking.reader())
                thoughts.append(detokenizer)
            choices.append(Choice(len(choices), i, detokenizer, options))
            requests.append(
                EngineRequest(
                    request_id=next(serving.request_ids),
                    prompt_token_ids=prompt,
                    max_tokens=max_tokens,
                    sampling=_NO_SAMPLING
                    if spec.pooling is not None
                    else sampling_params(
                        request, model.sampling, j, spec.num_logprobs, spec.num_prompt_logprobs, bad_words
                    ),
                    min_tokens=_min_tokens(request, spec, max_tokens),
                    stop_token_ids=stop_token_ids,
                    request_class=profile.request_class,
                    priority=profile.priority,
                    targets=profile.targets,
                    age_ms=max(0.0, (serving.clock() - arrived_at) * 1e3),
                    tenant=profile.tenant,
                    session_id=profile.session_id,
                    cache_salt=profile.cache_salt,
                    adapter=adapter,
                    pooling=spec.pooling,
                    images=spec.images,
                    grammar=None if spec.grammar is None else spec.grammar.grammar,
                )
            )
    return PreparedRequest(profile, choices, requests, spec.prompts, spec.reading, thoughts)


def _options(request: GenerationRequest, spec: PromptSpec) -> ChoiceOptions:
    strings = request.stop_strings
    return ChoiceOptions(
        stop_strings=StopStrings(strings) if strings else None,
        includes_stop=bool(request.include_stop_str_in_output),
        min_tokens=request.min_tokens or 0,
        keeps_logprobs=spec.num_logprobs is not None,
        keeps_token_ids=bool(request.return_token_ids),
        discards_output=spec.discards_output,
    )


def _stop_token_ids(request: GenerationRequest, spec: PromptSpec, ends_of_sequence: tuple[int, ...]) -> list[int]:
    """Raises InvalidRequestError where a grammar's end could not be told."""
    own = request.stop_token_ids or []
    if spec.grammar is not None and not ends_of_sequence:
        param = spec.grammar.param
        raise InvalidRequestError(
            f"'{param}' is not supported: this model has no token that ends its answers.",
            param=param,
            code="unsupported",
        )
    ignores_ends = request.ignore_eos and spec.grammar is None
    return own if ignores_ends else list(dict.fromkeys([*ends_of_sequence, *own]))


def _min_tokens(request: GenerationRequest, spec: PromptSpec, max_tokens: int) -> int:
    """With a grammar, `ignore_eos` counts as long as there is anything else to say."""
    ignores_ends = request.ignore_eos and spec.grammar is not None
    return max_tokens if ignores_ends else request.min_tokens or 0


def _most_tokens(request: GenerationRequest, spec: PromptSpec) -> int:
    """Of each choice: log-probabilities of an answer in one piece are kept until its end."""
    if spec.num_logprobs is None or request.stream:
        return 2**31
    num_each = 1 + spec.num_logprobs + len(request.logprob_token_ids or ())
    return MAX_LOGPROBS // (len(spec.prompts) * request.num_choices * num_each)


def _check_sizes(request: GenerationRequest, spec: PromptSpec) -> None:
    num_tokens = sum(map(len, spec.prompts))
    if num_tokens * request.num_choices > MAX_SUBMITTED_TOKENS:
        raise InvalidRequestError(
            f"The prompts' tokens times 'n' are more than {MAX_SUBMITTED_TOKENS}: send several requests.",
            param=spec.prompt_param,
        )
    if num_tokens * (1 + (spec.num_prompt_logprobs or 0)) > MAX_LOGPROBS and spec.num_prompt_logprobs is not None:
        raise InvalidRequestError(
            f"The prompt's log-probabilities are more than {MAX_LOGPROBS}: ask for fewer, or send several requests.",
            param="logprobs",
        )
    if spec.max_tokens is not None and spec.max_tokens > max(1, _most_tokens(request, spec)):
        raise InvalidRequestError(
            f"So many tokens, choices and log-probabilities make an answer that is too large: at most {MAX_LOGPROBS} "
            "log-probabilities come in one piece; use 'stream', or ask for fewer.",
            param="logprobs",
            code="answer_too_large",
        )


def _check_ids(request: GenerationRequest, spec: PromptSpec, info: EngineInfo) -> None:
    named = {
        "logit_bias": request.logit_bias or (),
        "stop_token_ids": request.stop_token_ids or (),
        "allowed_token_ids": request.allowed_token_ids or (),
        "logprob_token_ids": request.logprob_token_ids or (),
    }
    for param, ids in named.items():
        if ids and max(ids) >= info.vocab_size:
            raise InvalidRequestError(
                f"'{param}' names token {max(ids)}, but the vocabulary has {info.vocab_size} tokens.", param=param
            )
    for prompt in spec.prompts:
        if not prompt:
            raise InvalidRequestError("The prompt is empty.", param=spec.prompt_param)
        if max(prompt) >= info.vocab_size:
            raise InvalidRequestError(
                f"The prompt holds token {max(prompt)}, but the vocabulary has {info.vocab_size} tokens.",
                param=spec.prompt_param,
            )


def _check_engine(request: GenerationRequest, spec: PromptSpec, info: EngineInfo) -> None:
    if spec.num_prompt_logprobs is not None and PROMPT_LOGPROBS in info.missing:
        raise InvalidRequestError(
            f"This server's engine gives no {PROMPT_LOGPROBS}.", param="prompt_logprobs", code="unsupported"
        )
    if spec.num_prompt_logprobs is not None and spec.images:
        raise InvalidRequestError(
            "Log-probabilities of a prompt with images are not supported.", param="prompt_logprobs", code="unsupported"
        )
    if spec.pooling is None and GENERATION in info.missing:
        raise InvalidRequestError(
            "This model makes no text: its checkpoint has no head for tokens. Ask it for /v1/embeddings.",
            param="model",
            code="unsupported",
        )
    for name in (ALLOWED_TOKENS, BAD_WORDS, LOGPROB_TOKENS):
        if name in info.missing and getattr(request, name):
            raise InvalidRequestError(
                f"'{name}' is not supported by this server's engine.", param=name, code="unsupported"
            )


def _check_allowed(request: GenerationRequest, bad_words: list[list[int]], stop_token_ids: list[int]) -> None:
    """Raises InvalidRequestError where it is plain from the start that no token can be chosen."""
    if request.allowed_token_ids is None:
        return
    left = set(request.allowed_token_ids) - {word[0] for word in bad_words if len(word) == 1}
    if request.min_tokens:
        left -= set(stop_token_ids)
    if not left:
        raise InvalidRequestError(
            "'allowed_token_ids' leaves no token to begin with: 'bad_words' or 'min_tokens' exclude them.",
            param="allowed_token_ids",
        )


def _max_tokens(num_prompt_tokens: int, spec: PromptSpec, max_model_len: int) -> int:
    room = max_model_len - num_prompt_tokens
    if room < 1:
        raise InvalidRequestError(
            f"This model's context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens}.",
            param=spec.prompt_param,
            code="context_length_exceeded",
        )
    if spec.max_tokens is None:
        return room
    if spec.max_tokens < 1:
        raise InvalidRequestError(f"'{spec.max_tokens_param}' must be at least 1.", param=spec.max_tokens_param)
    if spec.max_tokens > room:
        raise InvalidRequestError(
            f"This model's context length is {max_model_len} tokens, but the prompt has {num_prompt_tokens} and "
            f"'{spec.max_tokens_param}' asks for {spec.max_tokens} more; at most {room} fit.",
            param=spec.max_tokens_param,
            code="context_length_exceeded",
        )
    return spec.max_tokens

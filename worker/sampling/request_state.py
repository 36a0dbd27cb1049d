"""What the sampler remembers of a request that is not plainly greedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from schedcore.api.types import EngineRequest, SamplingParams
from worker.grammars.matcher import Matcher
from worker.ops.noise import as_seed, derive_seed
from worker.sampling.allowed_tokens import AllowedTokens

MIN_TEMPERATURE = 1e-5  # below, dividing logits by it would overflow float32: greedy


class Needs:
    """Stages of the sampler that a request passes through, as bits. Plain integers: enum's operators are slow."""

    RANDOM = 1  # else greedy
    GRAMMAR = 2
    BIAS = 4
    MIN_TOKENS = 8
    PENALTIES = 16
    LOGPROBS = 32
    ALLOWED = 64
    ADJUSTMENTS = BIAS | MIN_TOKENS | PENALTIES
    LOOKS_BACK = PENALTIES | ALLOWED  # at what the request has output
    MASK = RANDOM | MIN_TOKENS | ALLOWED  # of the grammar, if there is one, before a token is chosen
    # That leave a token alone if the grammar forces it, and want nothing of its row.
    FORCED = RANDOM | GRAMMAR | MIN_TOKENS


class TokenHistory:
    """Distinct tokens of one request, each with how often it was output. Tokens of the prompt alone have count 0."""

    __slots__ = ("_counts", "_place", "_tokens")

    def __init__(self, prompt_token_ids: Sequence[int]) -> None:
        tokens = np.unique(np.asarray(prompt_token_ids, dtype=np.int64))
        self._place = {token: i for i, token in enumerate(tokens.tolist())}
        self._tokens = np.resize(tokens, len(tokens) + 64)
        self._counts = np.zeros(len(tokens) + 64, dtype=np.float32)

    def add(self, token: int) -> None:
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._tokens):
            self._tokens = np.resize(self._tokens, 2 * place)
            self._counts = np.concatenate((self._counts, np.zeros(place, dtype=np.float32)))
        self._tokens[place] = token
        self._counts[place] += 1

    def behind(self, tokens: Sequence[int]) -> TokenHistory:
        """As it would be after these tokens; itself, if there are none."""
        if not tokens:
            return self
        other = TokenHistory([])
        other._place = dict(self._place)
        other._tokens, other._counts = self._tokens.copy(), self._counts.copy()
        for token in tokens:
            other.add(token)
        return other

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        return self._tokens[: len(self._place)]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        return self._counts[: len(self._place)]


class RequestState:
    """Fixed at submission, except for the history."""

    __slots__ = (
        "allowed",
        "bias_tokens",
        "bias_values",
        "history",
        "matcher",
        "min_tokens",
        "needs",
        "num_prompt_tokens",
        "params",
        "seed",
        "stop_tokens",
    )

    def __init__(
        self, request: EngineRequest, vocab_size: int, engine_seed: int, matcher: Matcher | None = None
    ) -> None:
        """matcher: of its grammar, if it has one."""
        params = request.sampling
        self.params: SamplingParams = params
        self.num_prompt_tokens = len(request.prompt_token_ids) - request.num_prior_tokens
        prior = request.prompt_token_ids[self.num_prompt_tokens :]
        given = params.seed is not None
        self.seed = as_seed(params.seed or 0) if given else derive_seed(engine_seed, request.request_id)
        self.min_tokens = request.min_tokens
        self.stop_tokens = np.array([t for t in request.stop_token_ids if 0 <= t < vocab_size], dtype=np.int64)
        self.bias_tokens = np.array(list(params.logit_bias), dtype=np.int64)
        self.bias_values = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.needs = _needs(request)
        self.matcher = matcher
        self.allowed: AllowedTokens | None = None
        if self.needs & Needs.ALLOWED:
            self.allowed = AllowedTokens(params, self.stop_tokens.tolist(), vocab_size)
            for token in prior:
                self.allowed.note(token)
        self.history: TokenHistory | None = None
        if self.needs & Needs.PENALTIES:
            # only the repetition penalty looks at the prompt
            looks_at_prompt = params.repetition_penalty != 1.0
            prompt = request.prompt_token_ids[: self.num_prompt_tokens]
            self.history = TokenHistory(prompt if looks_at_prompt else [])
            for token in prior:
                self.history.add(token)


def is_plain(request: EngineRequest) -> bool:
    """True if argmax is all the sampling there is."""
    return _needs(request) == 0


def _needs(request: EngineRequest) -> int:
    params = request.sampling
    needs = 0
    if params.temperature >= MIN_TEMPERATURE:
        needs |= Needs.RANDOM
    if params.logit_bias:
        needs |= Needs.BIAS
    if request.min_tokens > 0 and request.stop_token_ids:
        needs |= Needs.MIN_TOKENS
    if params.repetition_penalty != 1.0 or params.presence_penalty != 0.0 or params.frequency_penalty != 0.0:
        needs |= Needs.PENALTIES
    if params.allowed_token_ids is not None or params.bad_words:
        needs |= Needs.ALLOWED
    if params.num_logprobs is not None:
        needs |= Needs.LOGPROBS
    if request.grammar is not None:
        needs |= Needs.GRAMMAR
    return needs

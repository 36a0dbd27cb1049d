"""What the server answers, typed. Frozen; fields that this version does not know are ignored.

`text` is the short way to what is usually wanted: the text of choice 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Marks fields that the client fills in and that are never read from the answer's body.
LOCAL = {"local": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Measured here, from the call to the answer: retries, connecting and the network count.

    ttft_ms  to the first text; None if not streamed
    tpot_ms  mean gap between output tokens, (last text - first text) / (tokens - 1); None if not streamed, if there
             are several choices, or fewer than two tokens
    e2e_ms   to the end of the answer, or of what has come so far
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return 1000.0 / self.tpot_ms if self.tpot_ms else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What every generated answer carries besides its body. `request_id` is what the server's log calls it."""

    request_id: str | None = field(default=None, metadata=LOCAL)
    timings: Timings = field(default=Timings(), metadata=LOCAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokensDetails:
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    prompt_tokens: int = 0
    completion_tokens: int = 0
    total_tokens: int = 0
    prompt_tokens_details: PromptTokensDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that came from the server's prefix cache."""
        return self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else 0


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. Goes into `messages` as well as a plain dict does."""

    role: str = "assistant"
    content: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopLogprob:
    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """Natural logarithm of the probability of one output token, and of the likeliest alternatives."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top_logprobs: tuple[TopLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatLogprobs:
    content: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChoice:
    """`finish_reason`: stop or length. `token_ids`: of the answer, if asked for with `return_token_ids`."""

    index: int = 0
    message: Message = Message()
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCompletion(Reply):
    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[ChatChoice, ...]
    usage: Usage | None = None
    service_tier: str | None = None

    @property
    def message(self) -> Message:
        """Ready to be appended to the messages of the next turn."""
        return self.choices[0].message if self.choices else Message()

    @property
    def text(self) -> str:
        return self.message.content

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatDelta:
    role: str | None = None
    content: str = ""
    reasoning_content: str = ""  # what a model thinks before it answers; no part of the answer


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChunkChoice:
    index: int = 0
    delta: ChatDelta = ChatDelta()
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    token_ids: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        return self.delta.content


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatChunk:
    """What one server-sent event adds. The last one has no choices and the usage."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[ChatChunkChoice, ...] = ()
    usage: Usage | None = None
    service_tier: str | None = None

    @property
    def text(self) -> str:
        """What it adds to choice 0; with n > 1 look into `choices`."""
        return "".join(choice.text for choice in self.choices if choice.index == 0)

    @property
    def thinking(self) -> str:
        """What it adds to the thinking of choice 0."""
        return "".join(choice.delta.reasoning_content for choice in self.choices if choice.index == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionLogprobs:
    """One entry per token, in parallel; the first prompt token has no logprob."""

    tokens: tuple[str, ...] = ()
    token_logprobs: tuple[float | None, ...] = ()
    top_logprobs: tuple[dict[str, float] | None, ...] = ()
    text_offset: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChoice:
    """Choices of several prompts follow each other: n of the first prompt, n of the second, and so on."""

    index: int = 0
    text: str = ""
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | None = None
    token_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion(Reply):
    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[CompletionChoice, ...]
    usage: Usage | None = None
    service_tier: str | None = None

    @property
    def text(self) -> str:
        return self.choices[0].text if self.choices else ""

    @property
    def finish_reason(self) -> str | None:
        return self.choices[0].finish_reason if self.choices else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionChunk:
    """What one server-sent event adds. The last one has no choices and the usage."""

    id: str = ""
    created: int = 0
    model: str = ""
    choices: tuple[CompletionChoice, ...] = ()
    usage: Usage | None = None
    service_tier: str | None = None

    @property
    def text(self) -> str:
        """What it adds to choice 0; with several choices look into `choices`."""
        return "".join(choice.text for choice in self.choices if choice.index == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    id: str
    created: int = 0
    owned_by: str = ""
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelList:
    """The body of `GET /v1/models`; `client.models.list()` returns its `data`."""

    data: tuple[Model, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    tokens: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """A token counts at the fastest tier that has it."""

    device: TierUse = TierUse()
    host: TierUse = TierUse()
    disk: TierUse = TierUse()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionStatus:
    """Where a session's cache is, and what the server does about an advisory.

    action     none, pin, prefetch, draft_prefill, release or refused
    outcome    accepted, clipped (the lease was cut), deferred (an earlier advisory is being seen to), rejected or
               missing (the server does not know the session)
    lease_ms   that the cache is held for; None: it is not
    """

    id: str
    num_tokens: int = 0
    tiers: Tiers = Tiers()
    action: str = "none"
    outcome: str = "accepted"
    lease_ms: float | None = None
    lease_expires_at: float | None = None

    @property
    def is_known(self) -> bool:
        return self.outcome != "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionDeleted:
    id: str
    deleted: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """`count` tokens; `max_model_len` is what prompt and answer may have together."""

    tokens: tuple[int, ...]
    count: int
    max_model_len: int | None = None
    token_strs: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Detokenized:
    """The body of `POST /detokenize`; `client.detokenize()` returns its `prompt`."""

    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """`status` in the server's words; `details` is whatever else it says."""

    is_healthy: bool
    status: str
    details: dict[str, Any] = field(default_factory=dict)

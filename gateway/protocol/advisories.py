"""`POST /v1/advisories` and `/v1/sessions/{id}`: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.chat import ChatRequest, Message, check_messages
from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import Name, TokenId

SessionId = Annotated[str, Meta(min_length=1, max_length=512)]
Outcome = Literal["accepted", "clipped", "deferred", "rejected", "missing"]


class AdvisoryRequest(msgspec.Struct, frozen=True, kw_only=True):
    event: Literal["typing", "agent_step", "cancel"] = "typing"
    session_id: SessionId | None = None
    prompt_cache_key: SessionId | None = None  # the same by OpenAI's name
    eta_ms: Annotated[float, Meta(ge=0, le=1e9)] | None = None  # the request comes no earlier
    lease_ms: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    messages: list[Message] | None = None  # the conversation before the draft
    draft: str | None = None  # of the next user message, as far as it is written
    prompt: str | list[TokenId] | None = None  # the beginning of the next prompt, for /v1/completions
    model: str | None = None
    cache_salt: Name | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool | None = None  # default: as the routes that the prompt is for

    @property
    def has_text(self) -> bool:
        return self.event != "cancel" and bool(self.messages or self.draft or self.prompt)

    def as_chat(self, messages: list[Message]) -> ChatRequest:
        return ChatRequest(
            messages=messages, add_generation_prompt=False, chat_template_kwargs=self.chat_template_kwargs
        )


_decoder = msgspec.json.Decoder(AdvisoryRequest)


def decode_advisory(body: bytes) -> AdvisoryRequest:
    """Raises InvalidRequestError."""
    request = decode_json(_decoder, body)
    check_advisory(request)
    return request


def check_advisory(request: AdvisoryRequest) -> None:
    """Raises InvalidRequestError."""
    if request.prompt is not None and request.messages is not None:
        raise InvalidRequestError("Give either 'prompt' or 'messages'.", param="prompt")
    if request.draft is not None and request.messages is None:
        raise InvalidRequestError(
            "'draft' needs 'messages', the conversation before it; [] at its beginning.",
            param="messages",
            code="missing_parameter",
        )
    if request.messages:
        check_messages(request.as_chat(request.messages))


class TypingWebhook(msgspec.Struct, frozen=True):
    """Standard Webhooks' envelope around an advisory."""

    type: Literal["typing.started", "typing.stopped", "agent.step"]
    data: AdvisoryRequest


_EVENTS: dict[str, Literal["typing", "agent_step", "cancel"]] = {
    "typing.started": "typing",
    "typing.stopped": "cancel",
    "agent.step": "agent_step",
}
_webhook_decoder = msgspec.json.Decoder(TypingWebhook)


def decode_typing_webhook(body: bytes) -> AdvisoryRequest:
    """Raises InvalidRequestError."""
    webhook = decode_json(_webhook_decoder, body)
    advisory = msgspec.structs.replace(webhook.data, event=_EVENTS[webhook.type])
    check_advisory(advisory)
    return advisory


class TierState(msgspec.Struct, frozen=True):
    tokens: int
    bytes: int


class Tiers(msgspec.Struct, frozen=True):
    """A token counts at the fastest tier that has it."""

    device: TierState
    host: TierState
    disk: TierState


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to an advisory, and what a session is."""

    id: str
    object: str = "session"
    num_tokens: int  # of its last request, prompt and output
    tiers: Tiers
    action: str  # none, pin, prefetch, draft_prefill, release, refused
    outcome: Outcome
    lease_ms: float | None  # that remain; null: none
    lease_expires_at: float | None  # Unix seconds


class SessionDeleted(msgspec.Struct, frozen=True):
    id: str
    object: str = "session.deleted"
    deleted: bool = True

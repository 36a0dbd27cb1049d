"""The answer to a chat request, whoever asks: an HTTP client who waits, or a row of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET

from gateway.choice import Choice
from gateway.classify import Profile
from gateway.logprobs import chat_logprobs
from gateway.prepare import Prepared, Wish, prepare
from gateway.protocol.chat import AssistantMessage, ChatChoice, ChatRequest, ChatResponse
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.response import response_head
from gateway.services import Services


class ChatAnswer:
    """`prepared` goes to the engine; `response` is made of the texts that come back."""

    def __init__(self, services: Services, chat: ChatRequest, model: str, prepared: Prepared) -> None:
        self.prepared = prepared
        self.head = response_head("chatcmpl", model, prepared.profile.service_tier)
        self._services = services
        self._chat = chat

    @classmethod
    async def prepare(cls, services: Services, chat: ChatRequest, profile: Profile, arrived_at: float) -> ChatAnswer:
        """Raises NotFoundError, UnavailableError, InvalidRequestError."""
        model = services.model_name(chat.model)
        services.ready_engine()
        wish = _wish(chat, await chat_prompt(services, chat))
        return cls(services, chat, model, prepare(services, chat, wish, profile, arrived_at=arrived_at))

    def response(self, texts: Sequence[str]) -> ChatResponse:
        """texts: of each choice, whole. REQUIRES: every choice has finished. Once only."""
        chat, prepared = self._chat, self.prepared

        def as_choice(choice: Choice) -> ChatChoice:
            tokenizer = self._services.tokenizer
            return ChatChoice(
                index=choice.index,
                message=AssistantMessage(texts[choice.index]),
                finish_reason=choice.finish_reason or "",
                logprobs=chat_logprobs(tokenizer, choice.take_logprobs()) if chat.logprobs else None,
                token_ids=choice.take_token_ids() if chat.return_token_ids else UNSET,
            )

        return ChatResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            choices=[as_choice(choice) for choice in prepared.choices],
            usage=prepared.usage(),
            service_tier=self.head.service_tier,
            prompt_token_ids=prepared.prompts[0] if chat.return_token_ids else UNSET,
        )


async def chat_prompt(services: Services, chat: ChatRequest) -> list[int]:
    """Raises InvalidRequestError if the model has no chat template, or its template refuses the messages."""
    if services.template is None:
        raise InvalidRequestError(
            "This model has no chat template: use /v1/completions, or serve it with --chat-template.",
            param="messages",
            code="no_chat_template",
        )
    return await services.tokenizer.encode(services.template.render(chat), bool(chat.add_special_tokens))


def _wish(chat: ChatRequest, prompt: list[int]) -> Wish:
    is_new_name = chat.max_completion_tokens is not None
    return Wish(
        prompt_param="messages",
        prompts=[prompt],
        max_tokens=chat.max_completion_tokens if is_new_name else chat.max_tokens,
        max_tokens_param="max_completion_tokens" if is_new_name else "max_tokens",
        num_logprobs=chat.num_logprobs,
    )

"""`POST /v1/chat/completions`."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET

from gateway.chat_chunks import ChatChunks
from gateway.choice import Choice
from gateway.generation import Generation
from gateway.logprobs import chat_logprobs
from gateway.prepare import Wish, prepare
from gateway.protocol.chat import AssistantMessage, ChatChoice, ChatRequest, ChatResponse, decode_chat
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.response import ResponseHead
from gateway.request_record import RequestRecord
from gateway.routes.common import json_response, read_body, response_head
from gateway.services import SERVICES, Services
from gateway.streaming import stream_response


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    record = RequestRecord.of(request)
    chat = decode_chat(await read_body(request))
    model = services.model_name(chat.model)
    services.ready_engine()
    wish = _wish(chat, await chat_prompt(services, chat))
    generation = prepare(services, chat, wish, tenant=record.tenant, arrived_at=record.arrived_at)
    record.generation = generation
    head = response_head("chatcmpl", model, generation)
    with generation:
        if chat.stream:
            chunks = ChatChunks(head, chat, generation, services.tokenizer)
            return await stream_response(request, generation, chunks)
        return json_response(_response(services, chat, head, generation, await generation.texts()))


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


def _response(
    services: Services, chat: ChatRequest, head: ResponseHead, generation: Generation, texts: list[str]
) -> ChatResponse:
    def as_choice(choice: Choice) -> ChatChoice:
        return ChatChoice(
            index=choice.index,
            message=AssistantMessage(texts[choice.index]),
            finish_reason=choice.finish_reason or "",
            logprobs=chat_logprobs(services.tokenizer, choice.take_logprobs()) if chat.logprobs else None,
            token_ids=choice.take_token_ids() if chat.return_token_ids else UNSET,
        )

    return ChatResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[as_choice(choice) for choice in generation.choices],
        usage=generation.usage(),
        service_tier=head.service_tier,
        prompt_token_ids=generation.prompts[0] if chat.return_token_ids else UNSET,
    )


ROUTES = [web.post("/v1/chat/completions", create_chat_completion)]

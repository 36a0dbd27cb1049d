"""`POST /v1/completions`."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET

from gateway.choice import Choice
from gateway.completion_chunks import CompletionChunks
from gateway.generation import Generation
from gateway.logprobs import CompletionLogprobsWriter, joined
from gateway.prepare import Wish, prepare
from gateway.protocol.completions import (
    CompletionChoice,
    CompletionLogprobs,
    CompletionRequest,
    CompletionResponse,
    Prompt,
    decode_completion,
)
from gateway.protocol.response import ResponseHead
from gateway.request_record import RequestRecord
from gateway.routes.common import json_response, read_body, response_head
from gateway.services import SERVICES, Services
from gateway.streaming import stream_response

DEFAULT_MAX_TOKENS = 16  # OpenAI's


async def create_completion(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    record = RequestRecord.of(request)
    completion = decode_completion(await read_body(request))
    model = services.model_name(completion.model)
    services.ready_engine()
    prompts = completion.prompts()
    wish = _wish(completion, await _token_ids(services, prompts, completion))
    generation = prepare(services, completion, wish, tenant=record.tenant, arrived_at=record.arrived_at)
    record.generation = generation
    head = response_head("cmpl", model, generation)
    echoes = [_text(services, prompt) for prompt in prompts] if completion.echo else None
    with generation:
        if completion.stream:
            chunks = CompletionChunks(head, completion, generation, services.tokenizer, echoes)
            return await stream_response(request, generation, chunks)
        texts = await generation.texts()
        return json_response(_response(services, completion, head, generation, texts, echoes))


async def _token_ids(services: Services, prompts: list[Prompt], completion: CompletionRequest) -> list[list[int]]:
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    if not texts:
        return [prompt for prompt in prompts if not isinstance(prompt, str)]
    return await services.tokenizer.encode_all(texts, completion.add_special_tokens is not False)


def _text(services: Services, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt)


def _wish(completion: CompletionRequest, prompts: list[list[int]]) -> Wish:
    max_tokens = DEFAULT_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens
    echoes_only = bool(completion.echo) and max_tokens == 0  # the engine has to compute one token to see the prompt
    return Wish(
        prompt_param="prompt",
        prompts=prompts,
        max_tokens=1 if echoes_only else max_tokens,
        num_logprobs=completion.logprobs,
        num_prompt_logprobs=completion.logprobs if completion.echo else None,
        discards_output=echoes_only,
    )


def _response(
    services: Services,
    completion: CompletionRequest,
    head: ResponseHead,
    generation: Generation,
    texts: list[str],
    echoes: list[str] | None,
) -> CompletionResponse:
    def logprobs(choice: Choice) -> CompletionLogprobs | None:
        if completion.logprobs is None:
            return None
        writer = CompletionLogprobsWriter(services.tokenizer, completion.logprobs)
        prompt = generation.prompts[choice.prompt_index]
        of_prompt = writer.prompt(prompt, choice.prompt_logprobs) if completion.echo else None
        return joined(of_prompt, writer.output(choice.take_logprobs()))

    def as_choice(choice: Choice) -> CompletionChoice:
        echo = echoes[choice.prompt_index] if echoes else ""
        return CompletionChoice(
            index=choice.index,
            text=echo + texts[choice.index],
            finish_reason=choice.finish_reason,
            logprobs=logprobs(choice),
            token_ids=choice.take_token_ids() if completion.return_token_ids else UNSET,
            prompt_token_ids=generation.prompts[choice.prompt_index] if completion.return_token_ids else UNSET,
        )

    return CompletionResponse(
        id=head.id,
        created=head.created,
        model=head.model,
        choices=[as_choice(choice) for choice in generation.choices],
        usage=generation.usage(),
        service_tier=head.service_tier,
    )


ROUTES = [web.post("/v1/completions", create_completion)]

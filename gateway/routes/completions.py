"""`POST /v1/completions`."""

from __future__ import annotations

from aiohttp import web

from gateway.classify import classify
from gateway.completion_answer import CompletionAnswer
from gateway.completion_chunks import CompletionChunks
from gateway.generation import Generation
from gateway.protocol.completions import decode_completion
from gateway.request_record import RequestRecord
from gateway.routes.common import json_response, read_body, session_header
from gateway.services import SERVICES
from gateway.streaming import stream_response


async def create_completion(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    record = RequestRecord.of(request)
    completion = decode_completion(await read_body(request))
    profile = classify(completion, record.tenant, services.config, session_header(request))
    answer = await CompletionAnswer.prepare(services, completion, profile, record.arrived_at)
    record.generation = generation = Generation(services, answer.prepared, record.arrived_at)
    with generation:
        if completion.stream:
            chunks = CompletionChunks(answer.head, completion, generation, services.tokenizer, answer.echoes)
            return await stream_response(request, generation, chunks)
        return json_response(answer.response(await generation.texts()))


ROUTES = [web.post("/v1/completions", create_completion)]

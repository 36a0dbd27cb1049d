"""`POST /v1/chat/completions`."""

from __future__ import annotations

from aiohttp import web

from gateway.chat_answer import ChatAnswer
from gateway.chat_chunks import ChatChunks
from gateway.classify import classify
from gateway.generation import Generation
from gateway.protocol.chat import decode_chat
from gateway.request_record import RequestRecord
from gateway.routes.common import json_response, read_body, session_header
from gateway.services import SERVICES
from gateway.streaming import stream_response


async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    services = request.app[SERVICES]
    record = RequestRecord.of(request)
    chat = decode_chat(await read_body(request))
    profile = classify(chat, record.tenant, services.config, session_header(request))
    answer = await ChatAnswer.prepare(services, chat, profile, record.arrived_at)
    record.generation = generation = Generation(services, answer.prepared, record.arrived_at)
    with generation:
        if chat.stream:
            chunks = ChatChunks(answer.head, chat, generation, services.tokenizer)
            return await stream_response(request, generation, chunks)
        return json_response(answer.response(await generation.texts()))


ROUTES = [web.post("/v1/chat/completions", create_chat_completion)]

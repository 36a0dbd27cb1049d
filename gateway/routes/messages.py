"""`POST /v1/messages/count_tokens`. The messages themselves: routes/generations.py."""

from __future__ import annotations

from aiohttp import web

from gateway.answers.chat_answer import chat_prompt
from gateway.generation.truncation import MAX_TOKENS
from gateway.http.request_record import RequestRecord
from gateway.model.tokenize import Asker
from gateway.protocol.messages import TokenCount, decode_count
from gateway.routes.common import decoded, json_response, read_body
from gateway.services import SERVICES


async def count_tokens(request: web.Request) -> web.Response:
    services, tenant = request.app[SERVICES], RequestRecord.of(request).tenant
    asked = await decoded(request, decode_count, await read_body(request))
    services.model.name(asked.model)
    most = max(MAX_TOKENS, services.serving.ready_engine().max_model_len)
    return json_response(TokenCount(len(await chat_prompt(services.model, asked, Asker(tenant, most, "messages")))))


ROUTES = [web.post("/v1/messages/count_tokens", count_tokens)]

"""`POST /v1/chat/completions`, `/v1/completions`: one handler for every endpoint that asks the model for text."""

from __future__ import annotations

from aiohttp import web
from aiohttp.typedefs import Handler

from gateway.answers.by_endpoint import prepare_answer
from gateway.answers.responses.responses_answer import ResponsesAnswer
from gateway.engine.classify import classify
from gateway.generation.generation import Generation, check_admission
from gateway.http.request_record import RequestRecord
from gateway.protocol.endpoints import BY_PATH, Endpoint, R
from gateway.routes.common import answered, decoded, json_response, read_body, session_header
from gateway.routes.streaming import stream_response
from gateway.services import SERVICES


def create(endpoint: Endpoint[R]) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        serving = request.app[SERVICES].serving
        record = RequestRecord.of(request)
        asked = await decoded(request, endpoint.decode, await read_body(request))
        defaults = serving.target_defaults.of(record.tenant)
        record.profile = profile = classify(
            asked, record.tenant, defaults, session_header(request), allow_priority=serving.config.allow_priority
        )
        check_admission(serving, asked, profile)
        answer = await prepare_answer(serving, endpoint, asked, profile, record.arrived_at)
        record.generation = generation = Generation(serving, answer.prepared, record.arrived_at)
        if asked.is_background and isinstance(answer, ResponsesAnswer):
            return json_response(request.app[SERVICES].background.begin(answer, generation))
        with generation as exchange:
            if asked.stream:
                return await stream_response(request, exchange, answer.chunks())
            return await answered(request, answer, await exchange.texts())

    return handler


ROUTES = [web.post(endpoint.path, create(endpoint)) for endpoint in BY_PATH.values()]

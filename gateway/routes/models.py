"""`GET /v1/models` and `/v1/models/{model}`."""

from __future__ import annotations

from aiohttp import web

from gateway.protocol.models import ModelCard, ModelList
from gateway.routes.common import json_response
from gateway.services import SERVICES, Services


def _card(services: Services, name: str) -> ModelCard:
    info = services.serving.ready_engine()
    root, parent = info.model, None
    if (folder := services.model.adapters.get(name)) is not None:
        root, parent = folder, services.model.names[0]
    return ModelCard(id=name, created=services.created, root=root, parent=parent, max_model_len=info.max_model_len)


async def list_models(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    return json_response(ModelList([_card(services, name) for name in services.model.names]))


async def get_model(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    return json_response(_card(services, services.model.name(request.match_info["model"])))


ROUTES = [web.get("/v1/models", list_models), web.get("/v1/models/{model:.+}", get_model)]

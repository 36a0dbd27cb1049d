"""`GET /tokenizer_info`, `POST /reset_prefix_cache`: vLLM's routes that an operator may open (docs/security.md)."""

from __future__ import annotations

from aiohttp import web

from gateway.engine.engine_client import EngineDeadError
from gateway.protocol.errors import InvalidRequestError, NotFoundError, UnavailableError
from gateway.protocol.server.status import CacheDropped
from gateway.routes.common import json_response
from gateway.services import SERVICES
from schedcore.api.types import CACHE_RESET


async def tokenizer_info(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    if not services.config.enable_tokenizer_info_endpoint:
        raise NotFoundError("This server does not show its tokenizer: --enable-tokenizer-info-endpoint lets it.")
    model = services.model
    shown = {name: value for name, value in model.tokenizer_config.items() if name != "chat_template"}
    shown.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    return web.json_response(shown | {"chat_template": model.template and model.template.source})


async def reset_prefix_cache(request: web.Request) -> web.Response:
    """Cached blocks that no request uses are dropped; it has happened when the answer comes."""
    services = request.app[SERVICES]
    if not services.config.enable_cache_reset:
        raise NotFoundError("This server's cache cannot be emptied by clients: --enable-cache-reset lets them.")
    engine, serving = services.serving.engine, services.serving
    if CACHE_RESET in serving.ready_engine().missing:
        raise InvalidRequestError("This server's engine cannot empty its cache.", code="unsupported")
    try:
        answer = await engine.reset_prefix_cache(next(serving.request_ids))
    except (EngineDeadError, TimeoutError) as error:
        raise UnavailableError(str(error) or "The engine did not answer in time.") from None
    if answer.num_blocks is None:
        raise InvalidRequestError(
            "The cache has copies in host memory or on disk, from which it would come back: start the server with "
            "--host-cache-bytes 0 and without --disk-cache-dir.",
            code="unsupported",
        )
    return json_response(CacheDropped(answer.num_blocks))


ROUTES = [web.get("/tokenizer_info", tokenizer_info), web.post("/reset_prefix_cache", reset_prefix_cache)]

"""The composition root: services, middleware and routes make one application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.advisory_gate import advisory_gate
from gateway.engine_client import EngineDeadError
from gateway.exposition import Exposition
from gateway.middleware import add_request_id, authentication, map_errors, track
from gateway.offline.runner_service import run_rows
from gateway.offline.service import run_offline
from gateway.offline.webhooks import deliver_webhooks
from gateway.protocol.errors import UnavailableError
from gateway.routes import routes
from gateway.routes.metrics import EXPOSITION
from gateway.services import SERVICES, Services

_log = logging.getLogger("hocket.gateway")
_FAREWELL_SECONDS = 5.0  # for handlers to tell their clients that the server stops


def create_app(services: Services, on_engine_settled: Callable[[], None] = lambda: None) -> web.Application:
    """The engine starts with the application and ends with it; meanwhile the application answers.

    `on_engine_settled` is called once, when the engine is ready or has failed to start.
    """
    config = services.config
    gate = advisory_gate(config, services.advisory_budgets)
    middlewares: list[Middleware] = [gate, track, map_errors, authentication(config.api_keys)]
    app = web.Application(middlewares=middlewares, client_max_size=config.max_body_bytes)
    app[SERVICES] = services
    app[EXPOSITION] = Exposition(
        services.metrics,
        services.engine,
        services.admissions,
        config.served_model_names[0],
        services.advisory_metrics,
    )
    app.add_routes(routes())
    app.on_response_prepare.append(add_request_id)
    app.on_shutdown.append(drain)
    app.cleanup_ctx.append(run_offline)
    app.cleanup_ctx.append(deliver_webhooks)
    app.cleanup_ctx.append(_engine(on_engine_settled))
    app.cleanup_ctx.append(run_rows)
    return app


def _engine(on_settled: Callable[[], None]) -> Callable[[web.Application], AsyncIterator[None]]:
    async def run_engine(app: web.Application) -> AsyncIterator[None]:
        services = app[SERVICES]
        starting = asyncio.create_task(_start(services, on_settled))
        yield
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await services.engine.close()
        services.tokenizer.close()

    return run_engine


async def _start(services: Services, on_settled: Callable[[], None]) -> None:
    try:
        await services.engine.start()
    except EngineDeadError:
        pass  # engine.death says why, to everyone who asks
    except Exception:
        _log.exception("The engine cannot be started")
    on_settled()


async def drain(app: web.Application) -> None:
    """No new requests; the open ones may finish, and those that take too long are told so."""
    services = app[SERVICES]
    services.is_draining = True
    await services.open.wait_until_none(services.config.drain_timeout_ms / 1e3)
    error = UnavailableError("The server is shutting down.", code="shutting_down")
    for generation in services.open:
        generation.fail(error)
    await services.open.wait_until_none(_FAREWELL_SECONDS)

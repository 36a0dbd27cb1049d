"""The composition root: services, middleware and routes make one application."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.typedefs import Middleware

from gateway.advisories.advisory_gate import advisory_gate
from gateway.engine.engine_client import EngineClient, EngineDeadError
from gateway.http.allowed_hosts import AllowedHosts
from gateway.http.browser_guard import browser_guard, share_answers
from gateway.http.middleware import add_request_id, authentication, map_errors, tracking
from gateway.metrics.catalogue.reading import Sources
from gateway.metrics.exposition import Exposition
from gateway.offline.running.runner_service import run_rows
from gateway.offline.running.service import run_offline
from gateway.offline.running.webhooks import deliver_webhooks
from gateway.protocol.errors import UnavailableError
from gateway.routes import routes
from gateway.routes.server import description
from gateway.routes.server.metrics import EXPOSITION
from gateway.services import SERVICES, Services

_log = logging.getLogger("hocket.gateway")
_FAREWELL_SECONDS = 5.0  # for handlers to tell their clients that the server stops


def create_app(services: Services, on_engine_settled: Callable[[], None] = lambda: None) -> web.Application:
    """The engine starts with the application and ends with it; meanwhile the application answers.

    `on_engine_settled` is called once, when the engine is ready or has failed to start.
    """
    config, serving = services.config, services.serving
    allowed = AllowedHosts(config)
    middlewares: list[Middleware] = [
        advisory_gate(config, services.advisory_budgets, services.advisory_metrics, services.now),
        tracking(serving.metrics, services.now, has_log=config.enable_access_log),
        map_errors,
        browser_guard(allowed),
        authentication(config.api_keys),
    ]
    app = web.Application(middlewares=middlewares, client_max_size=config.max_body_bytes)
    app[SERVICES] = services
    sources = Sources(
        metrics=serving.metrics,
        engine=serving.engine,
        admissions=serving.admissions,
        advisories=services.advisory_metrics,
        tasks=services.supervisor,
        text_work=services.model.tokenizer.pool,
        model_name=services.model.names[0],
    )
    app[EXPOSITION] = Exposition(sources)
    app.add_routes(routes())
    description.document(config)
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(share_answers(allowed))
    app.on_shutdown.append(drain)
    store, supervisor = services.offline, services.supervisor
    if store is not None:
        app.cleanup_ctx.append(run_offline(store, config, supervisor))
        app.cleanup_ctx.append(deliver_webhooks(store, supervisor))
    app.cleanup_ctx.append(_engine(services, on_engine_settled))
    app.cleanup_ctx.append(services.background.until_closed)
    if store is not None:
        app.cleanup_ctx.append(run_rows(serving, store, supervisor))
    return app


def _engine(services: Services, on_settled: Callable[[], None]) -> Callable[[web.Application], AsyncIterator[None]]:
    engine = services.serving.engine

    async def run_engine(_: web.Application) -> AsyncIterator[None]:
        starting = asyncio.create_task(_start(engine, on_settled))
        yield
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()
        services.model.tokenizer.close()

    return run_engine


async def _start(engine: EngineClient, on_settled: Callable[[], None]) -> None:
    try:
        await engine.start()
    except EngineDeadError:
        pass  # engine.death says why, to everyone who asks
    except Exception:
        _log.exception("The engine cannot be started")
    try:
        on_settled()
    except Exception:  # nobody waits for this task before the server's end
        _log.exception("The engine has settled, and what follows has failed")


async def drain(app: web.Application) -> None:
    """No new requests; the open ones may finish, and those that take too long are told so."""
    serving = app[SERVICES].serving
    serving.is_draining = True
    await serving.open.wait_until_none(serving.config.drain_timeout_ms / 1e3)
    error = UnavailableError("The server is shutting down.", code="shutting_down")
    for generation in serving.open:
        generation.fail(error)
    await serving.open.wait_until_none(_FAREWELL_SECONDS)

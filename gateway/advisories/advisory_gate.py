"""The outermost check of advisories: who sends too many is refused before anything else is done for it.

No body is read, no line logged, and the answer is made of parts that exist. A refusal still costs the interpreter some
tens of microseconds, so a tenant that does not heed it is answered ever later: its connections wait (aiohttp reads no
further request of a connection meanwhile), and that bounds what a storm takes away from everybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from gateway.advisories.advisory_budget import AdvisoryBudgets, AdvisoryRefusal, RefusalReason
from gateway.advisories.turnstile import Turnstile
from gateway.config.config import GatewayConfig
from gateway.config.tenants import Tenants
from gateway.http.middleware import CLIENT_GONE
from gateway.metrics.advisory_metrics import AdvisoryMetrics
from gateway.protocol.errors import ApiError, TooManyAdvisoriesError

ADVISORIES = "/v1/advisories"
SESSIONS = "/v1/sessions/"
UNKNOWN_LENGTH = 2**16  # charged for a body whose head does not say; what it was in the end is charged later


def advisory_gate(
    config: GatewayConfig, budgets: AdvisoryBudgets, metrics: AdvisoryMetrics, clock: Callable[[], float]
) -> Middleware:
    tenants, turnstile = Tenants(config.api_keys), Turnstile()
    bodies = {reason: _error(reason, config).body() for reason in RefusalReason}

    @web.middleware
    async def gate(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if path != ADVISORIES and not path.startswith(SESSIONS):
            return await handler(request)
        tenant = tenants.find(request.headers.get("Authorization"))
        if tenant is None:  # the next who looks says what is wrong
            return await handler(request)
        length = request.content_length
        num_bytes = length if length is not None else UNKNOWN_LENGTH if request.body_exists else 0
        budget, now = budgets.of(tenant), clock()
        refusal = budget.take(num_bytes, now)
        if refusal is None:
            if budget.is_exceeded(now):
                await turnstile.turn()
            return await handler(request)
        return await refuse(request, refusal)

    async def refuse(request: web.Request, refusal: AdvisoryRefusal) -> web.Response:
        if refusal.delay_seconds is None:
            metrics.num_refused["dropped"] += 1
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=CLIENT_GONE)
        metrics.num_refused[refusal.reason] += 1
        if refusal.delay_seconds:
            await asyncio.sleep(refusal.delay_seconds)
            await turnstile.turn()
        headers = {"Retry-After": str(refusal.whole_seconds)}
        body = bodies[refusal.reason]
        return web.Response(status=429, body=body, content_type="application/json", headers=headers)

    return gate


def _error(reason: RefusalReason, config: GatewayConfig) -> ApiError:
    if reason is RefusalReason.RATE:
        text = f"Too many advisories: {config.max_advisories_per_second:g} per second are allowed."
    else:
        text = f"Too many bytes in advisories: {config.max_advisory_bytes_per_second:g} per second are allowed."
    return TooManyAdvisoriesError(text, retry_after_seconds=1)

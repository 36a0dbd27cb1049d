"""`POST /v1/webhooks/typing`: an advisory as a signed webhook."""

from __future__ import annotations

import time

from aiohttp import web

from gateway.http.request_record import RequestRecord
from gateway.protocol.advisories import AdvisoryRequest, decode_typing_webhook
from gateway.protocol.errors import BodyTooLargeError, InvalidRequestError, NotFoundError, TooManyAdvisoriesError
from gateway.routes.advisories import advise
from gateway.routes.common import decoded, read_body
from gateway.services import SERVICES, Services

MAX_BYTES = 2**20  # read before it is known who sends it


async def typing_webhook(request: web.Request) -> web.Response:
    """204 also for what was seen before: a sender that missed the answer sends again."""
    services = request.app[SERVICES]
    webhook = services.typing_webhook
    if not webhook.is_configured:
        raise NotFoundError("This server has no --typing-webhook-secret, so it believes no webhooks.")
    if (request.content_length or 0) > MAX_BYTES:
        raise BodyTooLargeError(f"The body is larger than {MAX_BYTES} bytes.")
    body = await read_body(request)
    genuine = webhook.verify(request.headers, body, time.time())
    RequestRecord.of(request).tenant = genuine.tenant
    advisory = await decoded(request, decode_typing_webhook, body)
    _pay(services, genuine.tenant, len(body))
    if webhook.claim(genuine, time.time()):
        try:
            await _act(services, genuine.tenant, advisory)
        except BaseException:
            webhook.release(genuine)
            raise
    return web.Response(status=204)


async def _act(services: Services, tenant: str, advisory: AdvisoryRequest) -> None:
    session_id = advisory.session_id or advisory.prompt_cache_key
    if not session_id:
        raise InvalidRequestError(
            "Missing required parameter: 'data.session_id'.", param="data.session_id", code="missing_parameter"
        )
    await advise(services, tenant, session_id, advisory)


def _pay(services: Services, tenant: str, num_bytes: int) -> None:
    """Raises TooManyAdvisoriesError."""
    refusal = services.advisory_budgets.of(tenant).take(num_bytes, services.now())
    if refusal is not None:
        services.advisory_metrics.num_refused[refusal.reason] += 1
        raise TooManyAdvisoriesError("Too many typing webhooks.", retry_after_seconds=refusal.whole_seconds)


ROUTES = [web.post("/v1/webhooks/typing", typing_webhook)]

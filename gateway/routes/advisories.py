"""`POST /v1/advisories`: a session will soon send a request."""

from __future__ import annotations

import time

from aiohttp import web

from gateway.advisories.advisor import AdviceResult, timestamped
from gateway.advisories.announcement_table import SessionKey
from gateway.advisories.draft_prompt import draft_token_ids
from gateway.engine.classify import cache_salt
from gateway.http.request_record import RequestRecord
from gateway.protocol.advisories import AdvisoryRequest, SessionStatus, Tiers, TierState, decode_advisory
from gateway.protocol.errors import InvalidRequestError
from gateway.routes.common import decoded, json_response, read_body, session_header
from gateway.services import SERVICES, Services
from schedcore.api.types import ADVISORIES, AdvisoryEvent


async def create_advisory(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    tenant = RequestRecord.of(request).tenant
    body = await read_body(request)
    if request.content_length is None:
        services.advisory_budgets.of(tenant).charge(len(body))
    advisory = await decoded(request, decode_advisory, body)
    session_id = advisory.session_id or advisory.prompt_cache_key or session_header(request)
    if not session_id:
        raise InvalidRequestError(
            "Missing required parameter: 'session_id'.", param="session_id", code="missing_parameter"
        )
    return json_response(session_status(services, session_id, await advise(services, tenant, session_id, advisory)))


async def advise(services: Services, tenant: str, session_id: str, advisory: AdvisoryRequest) -> AdviceResult:
    """Raises ApiError."""
    services.model.name(advisory.model)
    if ADVISORIES in services.serving.ready_engine().missing:
        raise InvalidRequestError("Advisories are not supported by this server's engine.", code="unsupported")
    key = SessionKey(tenant, cache_salt(tenant, advisory.cache_salt), session_id)
    if advisory.event == "cancel":
        return await services.serving.advisor.cancel(key)

    async def tokens() -> list[int]:
        info = services.serving.ready_engine()
        return (await draft_token_ids(services.model.template, services.model.tokenizer, advisory, info, tenant))[
            : info.max_model_len
        ]

    event = AdvisoryEvent[advisory.event.upper()]
    return await services.serving.advisor.announce(
        key, event, advisory.eta_ms, advisory.lease_ms, tokens if advisory.has_text else None
    )


def session_status(services: Services, session_id: str, answer: AdviceResult) -> SessionStatus:
    state = answer.state
    tiers = [TierState(*pair) for pair in zip(state.tier_tokens, state.tier_bytes, strict=True)]
    lease_ms, expires_at = timestamped(answer, services.now(), time.time())
    return SessionStatus(
        id=session_id,
        num_tokens=state.num_tokens,
        tiers=Tiers(*tiers),
        action=state.action.name.lower(),
        outcome=answer.outcome,
        lease_ms=lease_ms,
        lease_expires_at=expires_at,
    )


ROUTES = [web.post("/v1/advisories", create_advisory)]

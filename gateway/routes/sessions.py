"""`GET` and `DELETE /v1/sessions/{id}`: where a session's cache is; forgetting it."""

from __future__ import annotations

from aiohttp import web

from gateway.advisories.advisor import AdviceResult
from gateway.advisories.announcement_table import SessionKey
from gateway.engine.classify import cache_salt
from gateway.http.request_record import RequestRecord
from gateway.protocol.advisories import SessionDeleted
from gateway.protocol.errors import NotFoundError
from gateway.routes.advisories import session_status
from gateway.routes.common import json_response
from gateway.services import SERVICES


async def get_session(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    services.serving.ready_engine()
    key = _key(request)
    state = await services.serving.advisor.query(key)
    if state is None:
        raise _unknown(key)
    return json_response(session_status(services, key.session_id, AdviceResult(state, "accepted", services.now())))


async def delete_session(request: web.Request) -> web.Response:
    services = request.app[SERVICES]
    services.serving.ready_engine()
    key = _key(request)
    if await services.serving.advisor.release(key) is None:
        raise _unknown(key)
    return json_response(SessionDeleted(key.session_id))


def _key(request: web.Request) -> SessionKey:
    tenant = RequestRecord.of(request).tenant
    return SessionKey(tenant, cache_salt(tenant, request.query.get("cache_salt")), request.match_info["session_id"])


def _unknown(key: SessionKey) -> NotFoundError:
    """The same words whether nobody or somebody else has such a session."""
    return NotFoundError(f"The session '{key.session_id}' does not exist.", code="session_not_found")


_PATH = "/v1/sessions/{session_id:.+}"
ROUTES = [web.get(_PATH, get_session), web.delete(_PATH, delete_session)]

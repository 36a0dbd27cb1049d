"""`GET /health`: 200 if a request sent now would be served."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web
from msgspec import UNSET

from gateway.base.supervision import SupervisedTask, TaskState
from gateway.protocol.errors import UnavailableError
from gateway.protocol.server.status import HealthStatus, ServerLoad
from gateway.routes.common import json_response
from gateway.services import SERVICES


async def health(request: web.Request) -> web.Response:
    """A task that comes back is no reason to send traffic elsewhere; one that cannot be kept up is."""
    services = request.app[SERVICES]
    try:
        info = services.serving.ready_engine()
    except UnavailableError as error:
        return json_response(HealthStatus(status=error.code or "", reason=error.message), error.status)
    supervisor = services.supervisor
    if failing := supervisor.in_state(TaskState.FAILING):
        return json_response(HealthStatus(status="task_failing", reason=_reason(failing)), 503)
    restarted = supervisor.in_state(TaskState.RESTARTED)
    trouble = _reason(restarted) if restarted else services.serving.engine.trouble
    found = HealthStatus(
        status="degraded" if trouble else "ok",
        reason=trouble or UNSET,
        model=services.model.names[0],
        device=info.device,
        dtype=info.dtype,
    )
    return json_response(found)


def _reason(tasks: Sequence[SupervisedTask]) -> str:
    return " ".join(
        f"The task {task.name} ended unexpectedly ({task.cause}) and was started again {task.num_restarts} times; "
        "the server's log says more."
        for task in tasks
    )


async def ping(request: web.Request) -> web.Response:
    """Amazon SageMaker's question: only the status counts."""
    return web.Response(status=(await health(request)).status)


async def load(request: web.Request) -> web.Response:
    """vLLM's: requests that are being served."""
    return json_response(ServerLoad(len(request.app[SERVICES].serving.open)))


ROUTES = [
    web.get("/health", health),
    web.get("/ping", ping),
    web.post("/ping", ping),
    web.get("/load", load),
]

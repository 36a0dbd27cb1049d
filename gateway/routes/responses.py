"""`GET` and `DELETE /v1/responses/{id}`, its input, and cancelling it. Creating one: routes/generations.py."""

from __future__ import annotations

import msgspec
from aiohttp import web

from gateway.generation.response_store import StoredResponse
from gateway.http.request_record import RequestRecord
from gateway.protocol.chat import Message
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.responses import DeletedResponse, InputItems
from gateway.routes.common import json_response
from gateway.services import SERVICES


async def retrieve(request: web.Request) -> web.Response:
    if request.query.get("stream", "").lower() == "true":
        raise InvalidRequestError("A response that has ended is not streamed again.", param="stream")
    running = request.app[SERVICES].background.status(RequestRecord.of(request).tenant, request.match_info["id"])
    if running is not None:
        return json_response(running)
    return web.Response(body=_stored(request).body, content_type="application/json")


async def delete(request: web.Request) -> web.Response:
    response_id = request.match_info["id"]
    await request.app[SERVICES].background.delete(RequestRecord.of(request).tenant, response_id)
    return json_response(DeletedResponse(response_id))


async def cancel(request: web.Request) -> web.Response:
    """Of those in the background: whoever waits for a response ends it by going away."""
    tenant = RequestRecord.of(request).tenant
    body = await request.app[SERVICES].background.cancel(tenant, request.match_info["id"])
    return web.Response(body=body, content_type="application/json")


async def input_items(request: web.Request) -> web.Response:
    tenant, response_id = RequestRecord.of(request).tenant, request.match_info["id"]
    asked = request.app[SERVICES].background.messages(tenant, response_id)
    items = [_item(message, i) for i, message in enumerate(_stored(request).messages[:-1] if asked is None else asked)]
    ids = [f"msg_{i}" for i in range(len(items))]
    return json_response(InputItems(items, ids[0] if ids else None, ids[-1] if ids else None))


def _stored(request: web.Request) -> StoredResponse:
    return request.app[SERVICES].serving.responses.get(RequestRecord.of(request).tenant, request.match_info["id"])


def _item(message: Message, index: int) -> dict[str, object]:
    kind = "output_text" if message.role == "assistant" else "input_text"
    parts = message.content if isinstance(message.content, list) else [message.content or ""]
    texts = [part if isinstance(part, str) else part.text for part in parts]
    item = {"id": f"msg_{index}", "type": "message", "role": message.role}
    return item | {"content": [{"type": kind, "text": text} for text in texts], **_calls(message)}


def _calls(message: Message) -> dict[str, object]:
    """Of tools, as the templates see them."""
    found = msgspec.to_builtins(message)
    return {name: found[name] for name in ("tool_calls", "tool_call_id") if found.get(name) is not None}


ROUTES = [
    web.get("/v1/responses/{id}", retrieve),
    web.delete("/v1/responses/{id}", delete),
    web.post("/v1/responses/{id}/cancel", cancel),
    web.get("/v1/responses/{id}/input_items", input_items),
]

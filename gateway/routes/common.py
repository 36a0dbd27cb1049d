"""What several handlers do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from gateway.answers.answer import Answer
from gateway.answers.heavy_json import decode_body, encode_answer
from gateway.http.request_record import RequestRecord
from gateway.protocol.errors import BodyTimeoutError, InvalidRequestError, MediaTypeError
from gateway.services import SERVICES

MAX_SESSION_ID_CHARACTERS = 512

T = TypeVar("T")


async def read_body(request: web.Request) -> bytes:
    """Raises MediaTypeError, BodyTimeoutError; aiohttp itself raises if the body is too large.

    The type is required because browsers send application/json to another site only if that site agrees: a page on
    the internet cannot talk to a server on the user's own machine.
    """
    if request.content_type != "application/json":
        raise MediaTypeError("The body must be JSON: send 'Content-Type: application/json'.")
    seconds = request.app[SERVICES].config.body_timeout_ms / 1e3
    try:
        async with asyncio.timeout(seconds):
            return await request.read()
    except TimeoutError:
        raise BodyTimeoutError(f"The body did not arrive within {seconds:g} seconds.") from None


async def decoded(request: web.Request, decode: Callable[[bytes], T], body: bytes) -> T:
    """Raises InvalidRequestError, QueueFullError."""
    return await decode_body(request.app[SERVICES].serving, decode, body, RequestRecord.of(request).tenant)


async def answered(request: web.Request, answer: Answer[Any], texts: Sequence[str]) -> web.Response:
    body = await encode_answer(request.app[SERVICES].serving, answer, texts)
    return web.Response(body=body, content_type="application/json")


def session_header(request: web.Request) -> str:
    """X-Session-Id, for clients that cannot change the body; empty if there is none. Raises InvalidRequestError."""
    session_id = request.headers.get("X-Session-Id", "")
    if len(session_id) > MAX_SESSION_ID_CHARACTERS:
        raise InvalidRequestError(
            f"A session id has at most {MAX_SESSION_ID_CHARACTERS} characters.", param="X-Session-Id"
        )
    if any("\ud800" <= character <= "\udfff" for character in session_id):  # bytes of the header that are no text
        raise InvalidRequestError("A session id must be UTF-8.", param="X-Session-Id")
    return session_id


def json_response(body: msgspec.Struct, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), content_type="application/json", status=status)

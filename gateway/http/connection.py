"""One connection of a client: aiohttp's, which says in addition when it is served and when it keeps us waiting.

What aiohttp leaves open: a head that never comes, a client that reads nothing, errors of the protocol in our shape, and
clients that shut down their sending side after a request (`nc -N`, some proxies) and wait for the answer. To the system
these look like clients that have gone. An interim answer tells the two apart: who has gone refuses it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any, cast

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.http.connections import Connections
from gateway.http.middleware import error_response
from gateway.protocol.errors import ApiError, BodyTimeoutError, InvalidRequestError, ServerError

_INTERIM = b"HTTP/1.1 102 Processing\r\n\r\n"
_FIRST_LOOK_SECONDS = 0.05  # most answers are there by then
_MAX_LOOK_SECONDS = 1.0
_SHOWN_CHARACTERS = 200

_log = logging.getLogger("hocket.gateway")


class Connection(web.RequestHandler):
    __slots__ = ("_all", "_has_eof", "_has_head", "_line", "_num_answered", "_request", "_said_interim", "is_extra")

    def __init__(self, server: web.Server, connections: Connections, **options: Any) -> None:
        super().__init__(server, **options)
        self.is_extra = False  # too many are served: only those who look after the server are, then
        self._all = connections
        self._line: asyncio.Transport | None = None  # aiohttp forgets it when it closes, the system may not
        self._request: web.BaseRequest | None = None  # that is being served
        self._has_head = False  # bytes of a head have come
        self._has_eof = False  # the client sends nothing more
        self._said_interim = False
        self._num_answered = 0

    @property
    def _num_unanswered(self) -> int:
        """Of the requests whose heads aiohttp has parsed."""
        return self._request_count - self._num_answered

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._line = cast(asyncio.Transport, transport)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._all.remove(self)
        self._request = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if data and self._request is None and not self._has_head:
            self._has_head = True
            self._all.begin_head(self)
        super().data_received(data)

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's protocols may say that they stay
        """Whether the connection stays open, for an answer."""
        if not self._num_unanswered:
            return False
        if self._request is not None and not self._request.content.is_eof():
            return False
        self._has_eof = True
        self._look_after(_FIRST_LOOK_SECONDS)
        return True

    def begin(self, request: web.BaseRequest) -> None:
        """A request's head is there."""
        self._request = request
        self._has_head = self._said_interim = False
        self._all.begin_serving(self)
        self.is_extra = self._all.is_crowded
        if self._has_eof and not request.content.is_eof():
            self.force_close()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):  # raised before or beside the application
            resp = error_response(InvalidRequestError(resp.reason) if resp.status < 500 else ServerError(resp.reason))
        if self.is_extra or (self._has_eof and self._num_unanswered == 1):
            resp.force_close()
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._end(bool(resp.keep_alive))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and what the application did not map."""
        error: ApiError
        if isinstance(exc, HttpProcessingError):
            said = " ".join((message or "").split())[:_SHOWN_CHARACTERS]
            self._all.metrics.num_malformed += 1
            self._all.log.warning("malformed", "A client at %s sent no HTTP: %s", request.remote, ascii(said))
            error = InvalidRequestError(f"The request is malformed: {said}", code="malformed_request")
        else:
            _log.error("A request failed outside the application", exc_info=exc)
            error = ServerError("The server failed; its log says why.")
        if request.writer.output_size > 0:
            raise ConnectionError("An answer has begun already.")
        response = error_response(error)
        response.force_close()
        return response

    def log_exception(self, *args: Any, **options: Any) -> None:
        """Of a body that is broken its handler has told the client; aiohttp finds it again when it reads the rest."""
        if not isinstance(options.get("exc_info"), web.RequestPayloadError):
            super().log_exception(*args, **options)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._all.begin_stalling(self)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._all.end_stalling(self)

    def num_unsent_bytes(self) -> int:
        return self._line.get_write_buffer_size() if self._line is not None else 0

    def refuse_head(self) -> None:
        if self._line is None:
            return
        if self._has_head:
            error = BodyTimeoutError(
                f"The head of the request did not arrive within {self._all.limits.head_seconds:g} seconds.",
                code="head_timeout",
            )
            self._line.write(plain_response(error))
        self._line.close()

    def abort(self) -> None:
        if self._line is not None:
            self._line.abort()

    def _end(self, stays: bool) -> None:
        self._request = None
        self._num_answered += 1
        if self._line is None or self._line.is_closing():
            return
        if self._has_eof and not self._num_unanswered:
            self.close()
            stays = False
        if stays:
            self._all.begin_idling(self)
        else:
            self._all.begin_leaving(self)

    def _look_after(self, seconds: float) -> None:
        self._loop.call_later(seconds, self._look, seconds)

    def _look(self, seconds: float) -> None:
        """Whether somebody is still there for the answer."""
        line, request = self._line, self._request
        if line is None or line.is_closing() or request is None:
            return
        if line.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            line.abort()
            return
        if not self._said_interim and request.version >= HttpVersion11 and not request.writer.output_size:
            self._said_interim = True
            line.write(_INTERIM)
        self._look_after(min(2 * seconds, _MAX_LOOK_SECONDS))


def plain_response(error: ApiError) -> bytes:
    """An error as it goes over the wire, where there is no request to answer."""
    body = error.body()
    reason = "Service Unavailable" if error.status == 503 else "Request Timeout"
    extra = "".join(f"{name}: {value}\r\n" for name, value in error.headers.items())
    head = f"HTTP/1.1 {error.status} {reason}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return f"{head}{extra}Connection: close\r\n\r\n".encode() + body

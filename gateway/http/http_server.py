"""Takes connections from a listening socket, as many as there is room for, and serves an application on them.

asyncio's own servers accept whatever comes, until no descriptor is left for anybody.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable

from aiohttp import hdrs, web

from gateway.http.connection import Connection, plain_response
from gateway.http.connections import Connections
from gateway.http.middleware import PROBED_PATHS, error_response
from gateway.http.root_path import below
from gateway.protocol.errors import InvalidRequestError, UnavailableError

_MAX_ACCEPTED = 32  # per turn of the event loop
_PAUSE_SECONDS = 0.1  # where the system has no descriptor for a new connection
_PIECE_BYTES = 2**16

_CONTINUE = "100-continue"

_Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer:
    """REQUIRES: `runner` is set up. Closing it ends the connections, `close` the taking of new ones.

    `connections` are swept by whoever made them.
    """

    def __init__(
        self,
        runner: web.AppRunner,
        listener: socket.socket,
        connections: Connections,
        tls: ssl.SSLContext | None = None,
        root_path: str = "",
    ) -> None:
        """root_path: taken off the paths that begin with it."""
        assert runner.server is not None
        self._server = runner.server
        self._server.request_handler = _announced(self._server.request_handler)
        if root_path.strip("/"):
            self._server.request_factory = below(root_path.rstrip("/"), self._server.request_factory)
        self._listener = listener
        self._connections = connections
        self._tls = tls
        self._is_closed = False
        self._arriving: set[asyncio.Task[object]] = set()
        self._refusal = plain_response(_too_many())

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener.setblocking(False)
        self._loop.add_reader(self._listener.fileno(), self._accept)

    async def close(self) -> None:
        self._is_closed = True
        self._loop.remove_reader(self._listener.fileno())
        await asyncio.gather(*self._arriving, return_exceptions=True)

    def _accept(self) -> None:
        for _ in range(_MAX_ACCEPTED):
            try:
                accepted, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, no memory: the client waits in the system's queue
                self._connections.log.warning("accept", "No new connections for a moment: %s", error.strerror)
                self._pause()
                return
            self._take(accepted)

    def _pause(self) -> None:
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(_PAUSE_SECONDS, self._resume)

    def _resume(self) -> None:
        if not self._is_closed:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _take(self, accepted: socket.socket) -> None:
        connections = self._connections
        connections.make_room()
        if connections.is_full:
            connections.count("refused", "More than %d connections: refused", connections.limits.max_connections)
            _refuse(accepted, self._refusal)
            return
        accepted.setblocking(False)
        connection = Connection(self._server, connections, loop=self._loop, access_log=None)
        connections.add(connection)
        seconds = connections.limits.head_seconds if self._tls is not None else None
        connecting = self._loop.connect_accepted_socket(
            lambda: connection, accepted, ssl=self._tls, ssl_handshake_timeout=seconds
        )
        task: asyncio.Task[object] = self._loop.create_task(connecting)
        self._arriving.add(task)
        task.add_done_callback(lambda done: self._arrived(done, connection, accepted))

    def _arrived(self, task: asyncio.Task[object], connection: Connection, accepted: socket.socket) -> None:
        self._arriving.discard(task)
        if task.cancelled() or task.exception() is not None:
            self._connections.remove(connection)
            accepted.close()


def _too_many() -> UnavailableError:
    message = "The server has as many connections as it can take."
    return UnavailableError(message, code="too_many_connections", headers={"Retry-After": "1"})


def _announced(handle: _Handler) -> _Handler:
    """The connection learns what it serves, before anything else happens."""

    async def serve(request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, Connection)
        connection.begin(request)
        if connection.is_extra and request.path not in PROBED_PATHS:
            return error_response(_too_many())
        if request.headers.get(hdrs.EXPECT, _CONTINUE).lower() != _CONTINUE:
            return error_response(InvalidRequestError("The only expectation is '100-continue'.", param="Expect"))
        return await handle(request)

    return serve


def _refuse(accepted: socket.socket, response: bytes) -> None:
    """Said if it can be said at once. What was sent is read first, or the system would take the answer back."""
    with accepted:
        accepted.setblocking(False)
        for step in (lambda: accepted.recv(_PIECE_BYTES), lambda: accepted.send(response)):
            try:
                step()
            except OSError:
                continue

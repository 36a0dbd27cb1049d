"""One server that somebody else runs: is it there, what does its queue say, and a request sent to it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator

import aiohttp
import msgspec

from gateway.stock.completion_body import completion_body
from gateway.stock.completion_events import CompletionEvents, error_message
from gateway.stock.errors import RequestRefusedError, ServerBusyError, ServerLostError
from gateway.stock.gauges import Gauges, read_gauges
from gateway.stock.offline_window import OfflineWindow
from gateway.stock.server_facts import Examiner, ServerFacts, reason
from schedcore.api.types import EngineRequest, RequestClass, TokenDelta

LOOK_TIMEOUT = aiohttp.ClientTimeout(total=5)
MAX_SILENT_LOOKS = 2  # in a row; then it is gone, whatever its connections seem to be
_STREAM_TIMEOUT = aiohttp.ClientTimeout(total=None, sock_connect=5)  # who waits in a queue hears nothing for long
_BUSY = (429, 503)
_CHANGED = (401, 403, 404)  # another key or model than when it was examined
_MAX_ERROR_BYTES = 1 << 16

_log = logging.getLogger("hocket.gateway")


class StockServer:
    """`facts` while it can be served from; `trouble` says why it cannot."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.facts: ServerFacts | None = None
        self.trouble: str | None = None  # None before the first look, too
        self.gauges: Gauges | None = None
        self.window = OfflineWindow()
        self.num_returns = 0  # after it was gone
        self.look_soon = asyncio.Event()
        self._num_silent = 0
        self._open: dict[int, EngineRequest] = {}
        self._pending: set[int] = set()  # online ones without a token
        self._scopes: dict[int, asyncio.Timeout] = {}  # ends the reading of each, when the server is lost

    @property
    def is_usable(self) -> bool:
        return self.facts is not None

    @property
    def num_open(self) -> int:
        return len(self._open)

    @property
    def num_offline(self) -> int:
        return sum(request.request_class is RequestClass.OFFLINE for request in self._open.values())

    @property
    def load(self) -> int:
        """Requests there: ours, and others' as far as its gauges show them."""
        gauges = self.gauges
        return self.num_open if gauges is None else max(self.num_open, gauges.num_running + gauges.num_waiting)

    @property
    def num_online_pending(self) -> int:
        return len(self._pending)

    def takes_offline(self) -> bool:
        return self.is_usable and self.window.has_room(self.num_offline, self.num_online_pending)

    # ---- is it there ----

    async def look(self, session: aiohttp.ClientSession, examiner: Examiner) -> None:
        """Examines it where that is due, and reads its gauges. Raises UnusableServerError of one that will not do."""
        self.look_soon.clear()
        try:
            if self.facts is None:
                await self._welcome(examiner)
            await self._check_health(session)
            self.gauges = await self._read_gauges(session)
            self._num_silent = 0
            self.window.observe(self.gauges, self.num_offline)
        except ServerLostError as error:
            self.lose(str(error))
        except (aiohttp.ClientError, OSError) as error:
            self._num_silent += 1
            if not isinstance(error, TimeoutError) or self._num_silent >= MAX_SILENT_LOOKS:
                self.lose(f"{self.url} cannot be reached: {reason(error)}")

    async def _welcome(self, examiner: Examiner) -> None:
        facts = await examiner.examine()
        if self.trouble is not None:
            self.num_returns += 1
            _log.warning("The server %s is back", self.url)
        self.facts, self.trouble = facts, None

    def lose(self, why: str) -> None:
        """Whatever is open there fails. Idempotent."""
        if self.trouble != why:
            _log.warning("No requests to a server: %s. Open requests: %d", why, self.num_open)
        self.facts, self.gauges, self.trouble = None, None, why
        now = asyncio.get_running_loop().time()
        for scope in self._scopes.values():
            with contextlib.suppress(RuntimeError):  # it ends by itself
                scope.reschedule(now)

    async def _check_health(self, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{self.url}/health", timeout=LOOK_TIMEOUT) as response:
            said = await response.content.read(_MAX_ERROR_BYTES)
            if response.status >= 500:
                raise ServerLostError(f"{self.url} says that it cannot serve: {_health(response.status, said)}")

    async def _read_gauges(self, session: aiohttp.ClientSession) -> Gauges | None:
        async with session.get(f"{self.url}/metrics", timeout=LOOK_TIMEOUT) as response:
            if response.status != 200:
                return None
            return read_gauges((await response.read()).decode(errors="replace"))

    # ---- a request ----

    def expect(self, request: EngineRequest) -> None:
        """It will be sent here, and counts from now on."""
        self._open[request.request_id] = request
        if request.request_class is not RequestClass.OFFLINE:
            self._pending.add(request.request_id)

    def forget(self, request_id: int) -> None:
        """Idempotent."""
        self._scopes.pop(request_id, None)
        self._open.pop(request_id, None)
        self._pending.discard(request_id)

    async def generate(
        self, session: aiohttp.ClientSession, request: EngineRequest
    ) -> AsyncGenerator[list[TokenDelta], None]:
        """Ends with its final delta; leaving it early aborts the request there.

        Raises ServerLostError, ServerBusyError, RequestRefusedError.
        """
        number = request.request_id
        self.expect(request)
        try:
            if self.facts is None:  # lost before the request had its turn
                raise ServerLostError(self.trouble or f"{self.url} is gone")
            body = completion_body(request, self.facts.model, self.facts.has_priority)
            async with asyncio.timeout(None) as scope:
                self._scopes[number] = scope
                async for deltas in self._read(session, request, body):
                    self._pending.discard(number)
                    yield deltas
        except TimeoutError:
            self.look_soon.set()
            raise ServerLostError(self.trouble or f"{self.url} does not answer") from None
        except (aiohttp.ClientError, OSError) as error:
            self.look_soon.set()
            raise ServerLostError(f"{self.url} hung up: {reason(error)}") from None
        finally:
            self.forget(number)

    async def _read(
        self, session: aiohttp.ClientSession, request: EngineRequest, body: bytes
    ) -> AsyncIterator[list[TokenDelta]]:
        headers = {"Content-Type": "application/json"}
        url = f"{self.url}/v1/completions"
        async with session.post(url, data=body, headers=headers, timeout=_STREAM_TIMEOUT) as response:
            if response.status != 200:
                raise await self._refusal(response)
            events = CompletionEvents(request, self.url)
            async for data in response.content.iter_any():
                if deltas := events.feed(data):
                    yield deltas
                if events.is_over:
                    return
        self.look_soon.set()
        raise ServerLostError(f"{self.url} hung up in the middle of an answer")

    async def _refusal(self, response: aiohttp.ClientResponse) -> Exception:
        said = await response.content.read(_MAX_ERROR_BYTES)
        try:
            content = msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError):
            content = said.decode(errors="replace")[:200]
        inner = content.get("error", content) if isinstance(content, dict) else content
        message = f"{self.url} says: {error_message(inner)}"
        if response.status in _BUSY:
            return ServerBusyError(message, _seconds(response.headers.get("Retry-After")))
        if response.status in _CHANGED:
            self.lose(message)  # so that it is examined again
        if response.status >= 500 or response.status in _CHANGED:
            self.look_soon.set()
            return ServerLostError(f"{message} (status {response.status})")
        return RequestRefusedError(message)


def _health(status: int, said: bytes) -> str:
    """The reason, where it is said."""
    try:
        content = msgspec.json.decode(said)
    except (msgspec.DecodeError, UnicodeDecodeError):
        content = None
    reason = content.get("reason") if isinstance(content, dict) else None
    return str(reason or f"status {status}")


def _seconds(retry_after: str | None) -> float:
    try:
        return min(60.0, max(1.0, float(retry_after or 1)))
    except ValueError:
        return 1.0

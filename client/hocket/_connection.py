"""What every call goes through. What to send, when to repeat it and what it means is decided elsewhere, once; here is
the I/O, twice."""

from __future__ import annotations

import asyncio
import copy
import time
from contextlib import aclosing, closing
from dataclasses import replace
from typing import Any, Self, TypeVar, Unpack

import httpx

from . import _calls
from ._calls import Call, Download, StreamCall
from ._options import CONNECTION_LIMITS, ClientOptions, Options
from ._retry import Attempts, Outcome

T = TypeVar("T")
AnyCall = Call[Any] | StreamCall[Any, Any] | Download


class BaseConnection:
    """A server and how to reach it; no socket yet."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._owns_sockets = True

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """One that differs in these and shares this one's sockets; closing it leaves them open."""
        other = copy.copy(self)
        other.options = replace(self.options, **changes)
        other._owns_sockets = False
        return other

    def _request(self, call: AnyCall, content: Any = None) -> httpx.Request:
        """`content` are the pieces of an upload."""
        timeout = httpx.Timeout(self.options.timeout).as_dict()
        return httpx.Request(
            call.method,
            self.options.base_url + call.path,
            json=call.body,
            content=content,
            headers=self.options.request_headers() | _calls.headers(call),
            extensions={"timeout": timeout},
        )


class Connection(BaseConnection):
    """Safe to share between threads."""

    def __init__(self, options: Options, transport: httpx.BaseTransport | None) -> None:
        super().__init__(options)
        self._http = httpx.Client(transport=transport, limits=CONNECTION_LIMITS)

    def fetch(self, call: Call[T]) -> T:
        """The whole answer. Raises HocketError."""
        started = time.perf_counter()
        response = self._perform(call, is_stream=False)
        return call.read(response, 1000 * (time.perf_counter() - started))

    def open(self, call: StreamCall[Any, Any] | Download) -> httpx.Response:
        """The answer with its body left unread: whoever reads it closes it. Raises HocketError."""
        return self._perform(call, is_stream=True)

    def attempt(self, call: AnyCall, *, is_stream: bool = False) -> Outcome:
        """Once, whatever comes of it."""
        try:
            upload = _calls.upload(call)
            request = self._request(call, upload.pieces() if upload else None)
            response = self._http.send(request, stream=True)
            if not (is_stream and response.is_success):
                with closing(response):
                    response.read()
        except httpx.RequestError as error:
            return error
        return response

    def close(self) -> None:
        if self._owns_sockets:
            self._http.close()

    def _perform(self, call: AnyCall, *, is_stream: bool) -> httpx.Response:
        """Sends it, again if need be, until it succeeds."""
        attempts = Attempts(self.options, _calls.repeatable(call))
        while True:
            verdict = attempts.judge(self.attempt(call, is_stream=is_stream))
            if isinstance(verdict, httpx.Response):
                return verdict
            time.sleep(verdict)


class AsyncConnection(BaseConnection):
    """`Connection`, awaited."""

    def __init__(self, options: Options, transport: httpx.AsyncBaseTransport | None) -> None:
        super().__init__(options)
        self._http = httpx.AsyncClient(transport=transport, limits=CONNECTION_LIMITS)

    async def fetch(self, call: Call[T]) -> T:
        """See `Connection.fetch`."""
        started = time.perf_counter()
        response = await self._perform(call, is_stream=False)
        return call.read(response, 1000 * (time.perf_counter() - started))

    async def open(self, call: StreamCall[Any, Any] | Download) -> httpx.Response:
        """See `Connection.open`."""
        return await self._perform(call, is_stream=True)

    async def attempt(self, call: AnyCall, *, is_stream: bool = False) -> Outcome:
        """See `Connection.attempt`."""
        try:
            upload = _calls.upload(call)
            request = self._request(call, upload.apieces() if upload else None)
            response = await self._http.send(request, stream=True)
            if not (is_stream and response.is_success):
                async with aclosing(response):
                    await response.aread()
        except httpx.RequestError as error:
            return error
        return response

    async def close(self) -> None:
        if self._owns_sockets:
            await self._http.aclose()

    async def _perform(self, call: AnyCall, *, is_stream: bool) -> httpx.Response:
        """Sends it, again if need be, until it succeeds."""
        attempts = Attempts(self.options, _calls.repeatable(call))
        while True:
            verdict = attempts.judge(await self.attempt(call, is_stream=is_stream))
            if isinstance(verdict, httpx.Response):
                return verdict
            await asyncio.sleep(verdict)

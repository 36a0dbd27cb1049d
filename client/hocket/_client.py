"""The clients. What to send, when to repeat it and what it means is decided elsewhere, once; here is the I/O, twice."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar, Unpack

import httpx

from . import _calls
from ._batches import AsyncBatches, Batches
from ._calls import Call, Download, StreamCall
from ._files import AsyncFiles, Files
from ._options import CONNECTION_LIMITS, ClientOptions, Options
from ._params import AdvisoryEvent, AdvisoryParams, Messages
from ._resources import AsyncChat, AsyncCompletions, AsyncModels, Chat, Completions, Models
from ._retry import Attempts, Outcome
from ._session import AsyncSession, Session
from ._types import Health, Message, SessionStatus, Tokens

T = TypeVar("T")
AnyCall = Call[Any] | StreamCall[Any, Any] | Download


class BaseClient:
    def __init__(self, base_url: str | None, options: ClientOptions) -> None:
        self.options = Options.at(base_url, options)
        self._owns_connections = True

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """A client that differs in these and shares this one's connections; closing it leaves them open.

        client.with_options(timeout=5, max_retries=0).chat.create("Hello!")
        """
        other = copy.copy(self)
        other.options = replace(self.options, **changes)
        other._owns_connections = False
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.base_url!r})"

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


class Client(BaseClient):
    """A hocket server, synchronously; safe to share between threads.

    `base_url` may end in `/v1` or not; the default is $HOCKET_BASE_URL, else http://127.0.0.1:8000. `ClientOptions`
    lists the other options.

        with hocket.Client() as client:
            print(client.chat.create("Hello!").text)

    `transport` replaces the network: a proxy, other certificates, or `httpx.MockTransport` in tests.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        transport: httpx.BaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, options)
        self._http = httpx.Client(transport=transport, limits=CONNECTION_LIMITS)

    @property
    def chat(self) -> Chat:
        return Chat(self)

    @property
    def completions(self) -> Completions:
        return Completions(self)

    @property
    def models(self) -> Models:
        return Models(self)

    @property
    def files(self) -> Files:
        return Files(self)

    @property
    def batches(self) -> Batches:
        return Batches(self)

    def tokenize(self, text: Messages, *, add_special_tokens: bool | None = None) -> Tokens:
        """A string as it is; messages as the model's chat template writes them."""
        return self._fetch(_calls.tokenize(text, add_special_tokens, self.options))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self._fetch(_calls.detokenize(tokens, self.options)).prompt

    def advise(
        self, session_id: str, event: AdvisoryEvent = "agent_step", **params: Unpack[AdvisoryParams]
    ) -> SessionStatus:
        """Says that the session will send a request, so that the server can have its cache ready; one attempt.

        client.advise("plan-17", eta_ms=4000)  # while a tool runs, say
        """
        return self.with_options(max_retries=0)._fetch(_calls.advise(session_id, event, params, self.options))

    def session(
        self, session_id: str | None = None, *, messages: Sequence[Message] = (), typing_interval: float = 0.5
    ) -> Session:
        """A conversation that goes on from `messages`; without an id it gets a new one.

        `typing_interval`: seconds between two notices that the user types.
        """
        return Session(self, session_id, messages, typing_interval)

    def health(self) -> Health:
        """One look, no retries. Raises APIConnectionError if nobody answers."""
        return _calls.read_health(self._send(_calls.health(), is_stream=False), self.options)

    def close(self) -> None:
        if self._owns_connections:
            self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fetch(self, call: Call[T]) -> T:
        started = time.perf_counter()
        response = self._perform(call, is_stream=False)
        return call.read(response, 1000 * (time.perf_counter() - started))

    def _perform(self, call: AnyCall, *, is_stream: bool) -> httpx.Response:
        """Sends it, again if need be, until it succeeds. The body of a stream is left unread. Raises HocketError."""
        attempts = Attempts(self.options, _calls.repeatable(call))
        while True:
            verdict = attempts.judge(self._send(call, is_stream=is_stream))
            if isinstance(verdict, httpx.Response):
                return verdict
            time.sleep(verdict)

    def _send(self, call: AnyCall, *, is_stream: bool) -> Outcome:
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


class AsyncClient(BaseClient):
    """A hocket server, for asyncio: `Client` with `async with`, `async for` and `await`.

    async with hocket.AsyncClient() as client:
        print((await client.chat.create("Hello!")).text)
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        super().__init__(base_url, options)
        self._http = httpx.AsyncClient(transport=transport, limits=CONNECTION_LIMITS)

    @property
    def chat(self) -> AsyncChat:
        return AsyncChat(self)

    @property
    def completions(self) -> AsyncCompletions:
        return AsyncCompletions(self)

    @property
    def models(self) -> AsyncModels:
        return AsyncModels(self)

    @property
    def files(self) -> AsyncFiles:
        return AsyncFiles(self)

    @property
    def batches(self) -> AsyncBatches:
        return AsyncBatches(self)

    async def tokenize(self, text: Messages, *, add_special_tokens: bool | None = None) -> Tokens:
        """A string as it is; messages as the model's chat template writes them."""
        return await self._fetch(_calls.tokenize(text, add_special_tokens, self.options))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return (await self._fetch(_calls.detokenize(tokens, self.options))).prompt

    async def advise(
        self, session_id: str, event: AdvisoryEvent = "agent_step", **params: Unpack[AdvisoryParams]
    ) -> SessionStatus:
        """Says that the session will send a request, so that the server can have its cache ready; one attempt."""
        client = self.with_options(max_retries=0)
        return await client._fetch(_calls.advise(session_id, event, params, self.options))

    def session(
        self, session_id: str | None = None, *, messages: Sequence[Message] = (), typing_interval: float = 0.5
    ) -> AsyncSession:
        """A conversation that goes on from `messages`; without an id it gets a new one.

        `typing_interval`: seconds between two notices that the user types.
        """
        return AsyncSession(self, session_id, messages, typing_interval)

    async def health(self) -> Health:
        """One look, no retries. Raises APIConnectionError if nobody answers."""
        return _calls.read_health(await self._send(_calls.health(), is_stream=False), self.options)

    async def close(self) -> None:
        if self._owns_connections:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _fetch(self, call: Call[T]) -> T:
        started = time.perf_counter()
        response = await self._perform(call, is_stream=False)
        return call.read(response, 1000 * (time.perf_counter() - started))

    async def _perform(self, call: AnyCall, *, is_stream: bool) -> httpx.Response:
        """Sends it, again if need be, until it succeeds. The body of a stream is left unread. Raises HocketError."""
        attempts = Attempts(self.options, _calls.repeatable(call))
        while True:
            verdict = attempts.judge(await self._send(call, is_stream=is_stream))
            if isinstance(verdict, httpx.Response):
                return verdict
            await asyncio.sleep(verdict)

    async def _send(self, call: AnyCall, *, is_stream: bool) -> Outcome:
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

"""The clients: the nouns of a server. All I/O is in `_connection.py`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

import httpx

from . import _calls
from ._batches.resource import AsyncBatches, Batches
from ._connection import AsyncConnection, Connection
from ._files.resource import AsyncFiles, Files
from ._options import ClientOptions, Options
from ._params import AdvisoryEvent, AdvisoryParams, Messages
from ._resources import AsyncChat, AsyncCompletions, AsyncModels, Chat, Completions, Models
from ._sessions.session import AsyncSession, Session
from ._types import Health, Message, SessionStatus, Tokens


class Client:
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
        self.options = Options.at(base_url, options)
        self._connection = Connection(self.options, transport)

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """A client that differs in these and shares this one's connections; closing it leaves them open.

        client.with_options(timeout=5, max_retries=0).chat.create("Hello!")
        """
        other = copy.copy(self)
        other._connection = self._connection.with_options(**changes)
        other.options = other._connection.options
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.base_url!r})"

    @property
    def chat(self) -> Chat:
        return Chat(self._connection)

    @property
    def completions(self) -> Completions:
        return Completions(self._connection)

    @property
    def models(self) -> Models:
        return Models(self._connection)

    @property
    def files(self) -> Files:
        return Files(self._connection)

    @property
    def batches(self) -> Batches:
        return Batches(self._connection)

    def tokenize(self, text: Messages, *, add_special_tokens: bool | None = None) -> Tokens:
        """A string as it is; messages as the model's chat template writes them."""
        return self._connection.fetch(_calls.tokenize(text, add_special_tokens, self.options))

    def detokenize(self, tokens: Sequence[int]) -> str:
        return self._connection.fetch(_calls.detokenize(tokens, self.options)).prompt

    def advise(
        self, session_id: str, event: AdvisoryEvent = "agent_step", **params: Unpack[AdvisoryParams]
    ) -> SessionStatus:
        """Says that the session will send a request, so that the server can have its cache ready; one attempt.

        client.advise("plan-17", eta_ms=4000)  # while a tool runs, say
        """
        once = self._connection.with_options(max_retries=0)
        return once.fetch(_calls.advise(session_id, event, params, self.options))

    def session(
        self, session_id: str | None = None, *, messages: Sequence[Message] = (), typing_interval: float = 0.5
    ) -> Session:
        """A conversation that goes on from `messages`; without an id it gets a new one.

        `typing_interval`: seconds between two notices that the user types.
        """
        return Session(self._connection, session_id, messages, typing_interval)

    def health(self) -> Health:
        """One look, no retries. Raises APIConnectionError if nobody answers."""
        return _calls.read_health(self._connection.attempt(_calls.health()), self.options)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient:
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
        self.options = Options.at(base_url, options)
        self._connection = AsyncConnection(self.options, transport)

    def with_options(self, **changes: Unpack[ClientOptions]) -> Self:
        """A client that differs in these and shares this one's connections; closing it leaves them open.

        client.with_options(timeout=5, max_retries=0).chat.create("Hello!")
        """
        other = copy.copy(self)
        other._connection = self._connection.with_options(**changes)
        other.options = other._connection.options
        return other

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.options.base_url!r})"

    @property
    def chat(self) -> AsyncChat:
        return AsyncChat(self._connection)

    @property
    def completions(self) -> AsyncCompletions:
        return AsyncCompletions(self._connection)

    @property
    def models(self) -> AsyncModels:
        return AsyncModels(self._connection)

    @property
    def files(self) -> AsyncFiles:
        return AsyncFiles(self._connection)

    @property
    def batches(self) -> AsyncBatches:
        return AsyncBatches(self._connection)

    async def tokenize(self, text: Messages, *, add_special_tokens: bool | None = None) -> Tokens:
        """A string as it is; messages as the model's chat template writes them."""
        return await self._connection.fetch(_calls.tokenize(text, add_special_tokens, self.options))

    async def detokenize(self, tokens: Sequence[int]) -> str:
        return (await self._connection.fetch(_calls.detokenize(tokens, self.options))).prompt

    async def advise(
        self, session_id: str, event: AdvisoryEvent = "agent_step", **params: Unpack[AdvisoryParams]
    ) -> SessionStatus:
        """Says that the session will send a request, so that the server can have its cache ready; one attempt."""
        once = self._connection.with_options(max_retries=0)
        return await once.fetch(_calls.advise(session_id, event, params, self.options))

    def session(
        self, session_id: str | None = None, *, messages: Sequence[Message] = (), typing_interval: float = 0.5
    ) -> AsyncSession:
        """A conversation that goes on from `messages`; without an id it gets a new one.

        `typing_interval`: seconds between two notices that the user types.
        """
        return AsyncSession(self._connection, session_id, messages, typing_interval)

    async def health(self) -> Health:
        """One look, no retries. Raises APIConnectionError if nobody answers."""
        return _calls.read_health(await self._connection.attempt(_calls.health()), self.options)

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

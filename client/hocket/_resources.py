"""The nouns that hang on a client: `client.chat`, `client.completions`, `client.models`."""

from __future__ import annotations

from typing import Unpack

from . import _calls
from ._connection import AsyncConnection, Connection
from ._params import ChatParams, CompletionParams, Messages, Prompt
from ._streams.stream import AsyncStream, Stream
from ._types import ChatChunk, ChatCompletion, Completion, CompletionChunk, Model


class Chat:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, messages: Messages, **params: Unpack[ChatParams]) -> ChatCompletion:
        """The whole answer at once. `messages`: a string is one user message; `params`: see `ChatParams`."""
        return self._connection.fetch(_calls.chat(messages, params, self._connection.options))

    def stream(self, messages: Messages, **params: Unpack[ChatParams]) -> Stream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; the request is sent on entering the `with` block. See `ChatParams`."""
        return Stream(_calls.chat_stream(messages, params, self._connection.options), self._connection)


class AsyncChat:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, messages: Messages, **params: Unpack[ChatParams]) -> ChatCompletion:
        """The whole answer at once. `messages`: a string is one user message; `params`: see `ChatParams`."""
        return await self._connection.fetch(_calls.chat(messages, params, self._connection.options))

    def stream(self, messages: Messages, **params: Unpack[ChatParams]) -> AsyncStream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; the request is sent on entering the `async with` block. See `ChatParams`."""
        return AsyncStream(_calls.chat_stream(messages, params, self._connection.options), self._connection)


class Completions:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Completion:
        """Continues text or token ids; several prompts give several choices. `params`: see `CompletionParams`."""
        return self._connection.fetch(_calls.completion(prompt, params, self._connection.options))

    def stream(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Stream[CompletionChunk, Completion]:
        """The continuation as it is generated, sent on entering the `with` block. See `CompletionParams`."""
        return Stream(_calls.completion_stream(prompt, params, self._connection.options), self._connection)


class AsyncCompletions:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def create(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Completion:
        """Continues text or token ids; several prompts give several choices. `params`: see `CompletionParams`."""
        return await self._connection.fetch(_calls.completion(prompt, params, self._connection.options))

    def stream(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> AsyncStream[CompletionChunk, Completion]:
        """The continuation as it is generated, sent on entering the `async with` block. See `CompletionParams`."""
        return AsyncStream(_calls.completion_stream(prompt, params, self._connection.options), self._connection)


class Models:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(self) -> tuple[Model, ...]:
        """What the server serves."""
        return self._connection.fetch(_calls.models()).data


class AsyncModels:
    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def list(self) -> tuple[Model, ...]:
        """What the server serves."""
        return (await self._connection.fetch(_calls.models())).data

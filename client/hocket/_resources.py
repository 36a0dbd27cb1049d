"""The nouns that hang on a client: `client.chat`, `client.completions`, `client.models`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from . import _calls
from ._params import ChatParams, CompletionParams, Messages, Prompt
from ._streams import AsyncStream, Stream
from ._types import ChatChunk, ChatCompletion, Completion, CompletionChunk, Model

if TYPE_CHECKING:
    from ._client import AsyncClient, Client


class Chat:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, messages: Messages, **params: Unpack[ChatParams]) -> ChatCompletion:
        """The whole answer at once. `messages`: a string is one user message."""
        return self._client._fetch(_calls.chat(messages, params, self._client.options))

    def stream(self, messages: Messages, **params: Unpack[ChatParams]) -> Stream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; the request is sent on entering the `with` block."""
        return Stream(_calls.chat_stream(messages, params, self._client.options), self._client)


class AsyncChat:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, messages: Messages, **params: Unpack[ChatParams]) -> ChatCompletion:
        """The whole answer at once. `messages`: a string is one user message."""
        return await self._client._fetch(_calls.chat(messages, params, self._client.options))

    def stream(self, messages: Messages, **params: Unpack[ChatParams]) -> AsyncStream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; the request is sent on entering the `async with` block."""
        return AsyncStream(_calls.chat_stream(messages, params, self._client.options), self._client)


class Completions:
    def __init__(self, client: Client) -> None:
        self._client = client

    def create(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Completion:
        """Continues text or token ids; several prompts give several choices."""
        return self._client._fetch(_calls.completion(prompt, params, self._client.options))

    def stream(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Stream[CompletionChunk, Completion]:
        """The continuation as it is generated; the request is sent on entering the `with` block."""
        return Stream(_calls.completion_stream(prompt, params, self._client.options), self._client)


class AsyncCompletions:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def create(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> Completion:
        """Continues text or token ids; several prompts give several choices."""
        return await self._client._fetch(_calls.completion(prompt, params, self._client.options))

    def stream(self, prompt: Prompt, **params: Unpack[CompletionParams]) -> AsyncStream[CompletionChunk, Completion]:
        """The continuation as it is generated; the request is sent on entering the `async with` block."""
        return AsyncStream(_calls.completion_stream(prompt, params, self._client.options), self._client)


class Models:
    def __init__(self, client: Client) -> None:
        self._client = client

    def list(self) -> tuple[Model, ...]:
        """What the server serves."""
        return self._client._fetch(_calls.models()).data


class AsyncModels:
    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def list(self) -> tuple[Model, ...]:
        """What the server serves."""
        return (await self._client._fetch(_calls.models())).data

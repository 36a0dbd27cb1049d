"""A conversation: its messages, and notices to the server that the user is about to say something.

with client.session() as session:
    session.typing()  # on every key press, if you like
    with session.chat("Hello!") as stream:
        for chunk in stream:
            print(chunk.text, end="")
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self, Unpack, cast

from hocket import _calls
from hocket._calls import Call
from hocket._connection import AsyncConnection, Connection
from hocket._exceptions import HocketError
from hocket._options import Options
from hocket._params import AdvisoryEvent, AdvisoryParams, ChatParams
from hocket._streams.stream import AsyncStream, Stream
from hocket._types import ChatChunk, ChatCompletion, Message, SessionStatus

from .typing import TypingTask, TypingThread

NOTICE_TIMEOUT = 5.0  # seconds; a notice that comes late is worth nothing


class BaseSession:
    """`id` is what the server calls it; `messages` are the conversation so far, yours to change."""

    def __init__(self, session_id: str | None, messages: Sequence[Message], options: Options) -> None:
        self._options = options
        self.id = session_id or f"session-{secrets.token_hex(12)}"
        self.messages: list[Message] = list(messages)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.id!r}, {len(self.messages)} messages)"

    def _advisory(self, event: AdvisoryEvent, params: AdvisoryParams) -> Call[SessionStatus]:
        return _calls.advise(self.id, event, params, self._options)

    def _notice(self, draft: str | None) -> AdvisoryParams:
        """Without a draft the server knows enough; with one it has to see what comes before."""
        if draft is None:
            return {}
        return {"messages": list(self.messages), "draft": draft}

    def _asking(self, content: str) -> list[Message]:
        return [*self.messages, Message("user", content)]

    def _params(self, params: ChatParams) -> ChatParams:
        return cast(ChatParams, {"session_id": self.id, **params})

    def _answered(self, asked: list[Message], answer: ChatCompletion) -> None:
        """An answer that was stopped or broke off stays as far as it came."""
        if answer.text:
            self.messages[:] = [*asked, answer.message]


class Session(BaseSession):
    """Made by `client.session()`. Leaving its `with` block tells the server that the conversation is over."""

    def __init__(
        self, connection: Connection, session_id: str | None, messages: Sequence[Message], interval: float
    ) -> None:
        super().__init__(session_id, messages, connection.options)
        self._connection = connection
        self._once = connection.with_options(max_retries=0)
        self._notices = connection.with_options(timeout=NOTICE_TIMEOUT, max_retries=0)
        self._typing = TypingThread(self._send, interval)

    def typing(self, draft: str | None = None) -> None:
        """The user types: the server gets the conversation's cache ready. Returns at once and never raises.

        With the draft, the server also computes what it can of the next prompt. Often called: few are sent.
        """
        self._typing.offer(draft)

    def chat(self, content: str, **params: Unpack[ChatParams]) -> Stream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; afterwards both turns are in `messages`."""
        self._typing.drop()
        asked = self._asking(content)
        call = _calls.chat_stream(asked, self._params(params), self._options)
        return Stream(call, self._connection, on_end=lambda answer: self._answered(asked, answer))

    def advise(self, **params: Unpack[AdvisoryParams]) -> SessionStatus:
        """`client.advise` for this session: its answer says where the cache is."""
        return self._once.fetch(self._advisory("agent_step", params))

    def cancel(self) -> SessionStatus:
        """The user has thought better of it: the cache need not be held."""
        self._typing.drop()
        return self._once.fetch(self._advisory("cancel", {}))

    def status(self) -> SessionStatus:
        """Raises NotFoundError if the server does not know the session (yet, or any more)."""
        return self._connection.fetch(_calls.session_status(self.id))

    def close(self) -> None:
        """The conversation is over: the server forgets the session. Never raises."""
        self._typing.close()
        with contextlib.suppress(HocketError, RuntimeError):
            self._notices.fetch(_calls.release_session(self.id))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _send(self, draft: str | None) -> Any:
        return self._notices.fetch(self._advisory("typing", self._notice(draft)))


class AsyncSession(BaseSession):
    """`Session` with `async with`, `async for` and `await`; `typing` and `chat` are called without `await`."""

    def __init__(
        self, connection: AsyncConnection, session_id: str | None, messages: Sequence[Message], interval: float
    ) -> None:
        super().__init__(session_id, messages, connection.options)
        self._connection = connection
        self._once = connection.with_options(max_retries=0)
        self._notices = connection.with_options(timeout=NOTICE_TIMEOUT, max_retries=0)
        self._typing = TypingTask(self._send, interval)

    def typing(self, draft: str | None = None) -> None:
        """The user types: the server gets the conversation's cache ready. Returns at once and never raises.

        With the draft, the server also computes what it can of the next prompt. Often called: few are sent.
        """
        self._typing.offer(draft)

    def chat(self, content: str, **params: Unpack[ChatParams]) -> AsyncStream[ChatChunk, ChatCompletion]:
        """The answer as it is generated; afterwards both turns are in `messages`."""
        self._typing.drop()
        asked = self._asking(content)
        call = _calls.chat_stream(asked, self._params(params), self._options)
        return AsyncStream(call, self._connection, on_end=lambda answer: self._answered(asked, answer))

    async def advise(self, **params: Unpack[AdvisoryParams]) -> SessionStatus:
        """`client.advise` for this session: its answer says where the cache is."""
        return await self._once.fetch(self._advisory("agent_step", params))

    async def cancel(self) -> SessionStatus:
        """The user has thought better of it: the cache need not be held."""
        self._typing.drop()
        return await self._once.fetch(self._advisory("cancel", {}))

    async def status(self) -> SessionStatus:
        """Raises NotFoundError if the server does not know the session (yet, or any more)."""
        return await self._connection.fetch(_calls.session_status(self.id))

    async def close(self) -> None:
        """The conversation is over: the server forgets the session. Never raises."""
        await self._typing.close()
        with contextlib.suppress(HocketError, RuntimeError):
            await self._notices.fetch(_calls.release_session(self.id))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _send(self, draft: str | None) -> Any:
        return await self._notices.fetch(self._advisory("typing", self._notice(draft)))

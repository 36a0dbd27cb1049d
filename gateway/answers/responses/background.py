"""Responses that nobody waits for: `background` of /v1/responses. Polled, and cancelled, until they have ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.answers.heavy_json import encode_answer
from gateway.answers.responses.responses_answer import ResponsesAnswer
from gateway.generation.exchange import Exchange
from gateway.generation.generation import Generation
from gateway.generation.response_store import StoredResponse
from gateway.generation.serving import Serving
from gateway.model.chat_template import num_content_characters
from gateway.protocol.chat import Message
from gateway.protocol.errors import ApiError, InvalidRequestError, NotFoundError, ServerError
from gateway.protocol.responses import ResponseFailure, ResponseObject

_log = logging.getLogger("hocket.gateway")


@dataclass(slots=True)
class _Running:
    answer: ResponsesAnswer
    exchange: Exchange
    task: asyncio.Task[None]


class BackgroundResponses:
    """Each takes its place in the queue, its time and its tenant's share as if somebody waited for it.

    What has ended is in the store of responses, for as long as that has room.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._running: dict[tuple[str, str], _Running] = {}  # by tenant and id

    def __len__(self) -> int:
        return len(self._running)

    def begin(self, answer: ResponsesAnswer, generation: Generation) -> ResponseObject:
        """Raises QueueFullError, UnavailableError, and InvalidRequestError where nothing is kept."""
        if self._serving.config.max_response_bytes == 0:
            raise InvalidRequestError(
                "'background' needs responses to be kept: this server has --max-response-bytes 0.", param="background"
            )
        answer.growing.store = self._serving.responses
        with contextlib.ExitStack() as taken:
            exchange = taken.enter_context(generation)
            held = taken.pop_all()
        task = asyncio.create_task(self._run(answer, exchange, held))
        key = answer.tenant, answer.growing.id
        self._running[key] = _Running(answer, exchange, task)
        task.add_done_callback(lambda _: self._end(key, held))
        return answer.growing.described("queued")

    def status(self, tenant: str, response_id: str) -> ResponseObject | None:
        """Of one that has not ended."""
        running = self._running.get((tenant, response_id))
        if running is None:
            return None
        return running.answer.growing.described("in_progress" if running.exchange.has_begun else "queued")

    def messages(self, tenant: str, response_id: str) -> tuple[Message, ...] | None:
        """That one is to answer which has not ended."""
        running = self._running.get((tenant, response_id))
        return None if running is None else running.answer.growing.asked_messages

    async def cancel(self, tenant: str, response_id: str) -> bytes:
        """The response as it then is; one that has ended stays as it is. Raises NotFoundError, InvalidRequestError."""
        running = self._running.get((tenant, response_id))
        if running is not None:
            running.task.cancel()
            await asyncio.wait([running.task])
            if (tenant, response_id) in self._running:  # its end is told in the loop's next turn
                await asyncio.sleep(0)
        stored = self._serving.responses.get(tenant, response_id)
        if not msgspec.json.decode(stored.body, type=_Kind).background:
            raise InvalidRequestError(
                "Only responses in the background can be cancelled.", code="response_not_cancellable"
            )
        return stored.body

    async def delete(self, tenant: str, response_id: str) -> None:
        """Ends it first. Raises NotFoundError."""
        if (tenant, response_id) in self._running:
            with contextlib.suppress(NotFoundError):  # it was too large to be kept
                await self.cancel(tenant, response_id)
        self._serving.responses.delete(tenant, response_id)

    @contextlib.asynccontextmanager
    async def until_closed(self, _: Any) -> AsyncIterator[None]:
        """For an application's cleanup: what still runs then ends as cancelled."""
        yield
        for running in self._running.values():
            running.task.cancel()
        await self.until_none()

    async def until_none(self) -> None:
        """Returns when all have ended."""
        while tasks := [running.task for running in self._running.values()]:
            await asyncio.wait(tasks)
            await asyncio.sleep(0)  # in which the loop tells of their ends

    async def _run(self, answer: ResponsesAnswer, exchange: Exchange, generation: contextlib.ExitStack) -> None:
        try:
            with generation:
                await encode_answer(self._serving, answer, await exchange.texts())  # which keeps it
        except asyncio.CancelledError:
            self._keep(answer, "cancelled", None)
        except ApiError as error:
            self._keep(answer, "failed", error)
        except Exception:
            _log.exception("A response in the background failed")
            self._keep(answer, "failed", ServerError("The server failed; its log says why."))

    def _end(self, key: tuple[str, str], generation: contextlib.ExitStack) -> None:
        """Also of a task that was cancelled before it began."""
        generation.close()
        del self._running[key]

    def _keep(self, answer: ResponsesAnswer, status: str, error: ApiError | None) -> None:
        reason = None if error is None else ResponseFailure(error.code or error.type, error.message)
        body = msgspec.json.encode(answer.growing.described(status, error=reason))
        messages = (*answer.growing.asked_messages, Message("assistant", ""))
        num_characters = sum(map(num_content_characters, messages))
        stored = StoredResponse.of(answer.growing.id, body, messages, num_characters)
        self._serving.responses.put(answer.tenant, stored)


class _Kind(msgspec.Struct):
    background: bool

"""One row of a batch: its body -> the engine -> the line of the output or error file.

Checks, prompts and responses are those of the online routes (chat_answer.py, completion_answer.py). Nothing is
streamed: tokens pile up until the last one is there and become text at once, except where stop strings have to be
looked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from gateway.chat_answer import ChatAnswer
from gateway.classify import FAVOURED, Profile, classify
from gateway.completion_answer import CompletionAnswer
from gateway.delta_stream import DeltaStream
from gateway.engine_client import EngineDeadError
from gateway.offline.lines import line_id, response_line
from gateway.offline.records import BatchRecord, RowRecord, RowResult, TokenUsage
from gateway.offline.request_budget import RequestBudget
from gateway.prepare import Prepared
from gateway.protocol.chat import decode_chat
from gateway.protocol.completions import decode_completion
from gateway.protocol.errors import ApiError, InvalidRequestError, QueueFullError, UnavailableError, from_engine
from gateway.protocol.generation import GenerationRequest
from gateway.services import Services
from schedcore.types import FinishReason, RequestClass, TokenDelta, TokenLogprobs

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"

# Of a promoted row: loose, since nobody watches, and such that people's requests come first.
PROMOTED_TTFT_MS = 60_000.0
PROMOTED_ITL_MS = 2_000.0


class NotNowError(Exception):
    """The row cannot run at present, through no fault of its own. It stays pending."""


class Answer(Protocol):
    @property
    def prepared(self) -> Prepared: ...

    def response(self, texts: Sequence[str]) -> msgspec.Struct: ...


@dataclass(slots=True)
class RowRun:
    """A row on its way."""

    services: Services
    batch: BatchRecord
    row: RowRecord
    budget: RequestBudget
    is_promoted: bool = False
    is_favoured: bool = False  # among offline requests
    prepared: Prepared | None = None
    _stream: DeltaStream | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has tokens, which would be lost if it were taken back."""
        if self._stream is None or self.prepared is None:
            return False
        return self._stream.num_arrived + self.prepared.num_output_tokens > 0

    async def result(self) -> RowResult:
        """Raises NotNowError."""
        try:
            answer = await prepare_answer(self.services, self.batch.endpoint, self.row.body, self._profile)
            self.prepared = answer.prepared
            texts = await self._texts(answer.prepared)
        except (QueueFullError, UnavailableError, EngineDeadError) as error:
            raise NotNowError(str(error)) from error
        except ApiError as error:
            return self._finished(error.status, error.body())
        return self._finished(200, msgspec.json.encode(answer.response(texts)), answer.prepared)

    def failure(self, error: ApiError) -> RowResult:
        return self._finished(error.status, error.body())

    def _finished(self, status: int, body: bytes, prepared: Prepared | None = None) -> RowResult:
        index = self.row.index
        line = response_line(
            self.batch.id,
            index,
            self.row.custom_id,
            status_code=status,
            request_id=line_id(self.batch.id, index),
            body=body,
        )
        return RowResult(self.batch.id, index, status != 200, line, _usage(prepared))

    def _profile(self, request: GenerationRequest) -> Profile:
        profile = classify(request, self.batch.tenant, self.services.config)
        return dataclasses.replace(
            profile,
            request_class=RequestClass.ONLINE if self.is_promoted else RequestClass.OFFLINE,
            priority=FAVOURED if self.is_favoured and not self.is_promoted else 0,
            ttft_target_ms=PROMOTED_TTFT_MS if self.is_promoted else None,
            itl_target_ms=PROMOTED_ITL_MS if self.is_promoted else None,
        )

    async def _texts(self, prepared: Prepared) -> list[str]:
        async with self.budget.hold(len(prepared.requests)):
            with self.services.engine.stream(prepared.requests) as stream:
                self._stream = stream
                if any(choice.scans_text for choice in prepared.choices):
                    return await _texts_as_they_come(prepared, stream)
                return _texts_at_the_end(prepared, await stream.receive_rest())


async def prepare_answer(
    services: Services, endpoint: str, body: bytes, profile_of: Callable[[GenerationRequest], Profile]
) -> Answer:
    """Raises ApiError."""
    now = services.clock()
    if endpoint == CHAT:
        chat = decode_chat(body)
        _check(chat)
        return await ChatAnswer.prepare(services, chat, profile_of(chat), now)
    completion = decode_completion(body)
    _check(completion)
    return await CompletionAnswer.prepare(services, completion, profile_of(completion), now)


def _check(request: GenerationRequest) -> None:
    if request.stream:
        raise InvalidRequestError("'stream' is not supported in a batch.", param="stream", code="unsupported")


async def _texts_as_they_come(prepared: Prepared, stream: DeltaStream) -> list[str]:
    parts: list[list[str]] = [[] for _ in prepared.choices]
    first_id = prepared.requests[0].request_id
    while not all(choice.is_finished for choice in prepared.choices):
        for delta in await stream.receive():
            choice = prepared.choices[delta.request_id - first_id]
            if choice.is_finished:
                continue
            _check_delta(delta)
            parts[choice.index].append(choice.feed(delta))
            if choice.stopped_by_gateway:
                stream.end(delta.request_id)
    return ["".join(texts) for texts in parts]


def _texts_at_the_end(prepared: Prepared, deltas: Sequence[TokenDelta]) -> list[str]:
    first_id = prepared.requests[0].request_id
    of_choice: list[list[TokenDelta]] = [[] for _ in prepared.choices]
    for delta in deltas:
        _check_delta(delta)
        of_choice[delta.request_id - first_id].append(delta)
    return [choice.feed(_joined(of_choice[choice.index])) for choice in prepared.choices]


def _check_delta(delta: TokenDelta) -> None:
    """Raises ApiError."""
    if delta.finish_reason is FinishReason.ERROR or delta.finish_reason is FinishReason.ABORT:
        raise from_engine(delta.error)


def _joined(deltas: Sequence[TokenDelta]) -> TokenDelta:
    """All that was said of one request, as if in one step."""
    first, last = deltas[0], deltas[-1]
    logprobs: list[TokenLogprobs] = [entry for delta in deltas for entry in delta.logprobs or ()]
    return TokenDelta(
        last.request_id,
        [token_id for delta in deltas for token_id in delta.token_ids],
        last.finish_reason,
        last.stop_token_id,
        first.num_cached_tokens,
        logprobs or None,
        first.prompt_logprobs,
    )


def _usage(prepared: Prepared | None) -> TokenUsage:
    if prepared is None:
        return TokenUsage()
    usage = prepared.usage()
    return TokenUsage(
        input_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        output_tokens=usage.completion_tokens,
    )

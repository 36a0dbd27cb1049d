"""One row of a batch: its body -> the engine -> the line of the output or error file.

Checks, prompts and responses are those of the online routes (gateway/answers/by_endpoint.py). Nothing is
streamed: tokens pile up until the last one is there and become text at once, except where stop strings have to be
looked for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from gateway.answers.answer import Answer
from gateway.answers.by_endpoint import prepare_answer
from gateway.answers.heavy_json import decode_body, encode_answer
from gateway.engine.classify import FAVOURED, Profile, classify
from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.engine_nodes import EngineNodes
from gateway.generation.exchange import Exchange, Unobserved
from gateway.generation.prepare import PreparedRequest
from gateway.generation.serving import Serving
from gateway.offline.running.request_budget import RequestBudget
from gateway.offline.running.row_figures import RowFigures
from gateway.offline.store.lines import line_id, response_line
from gateway.offline.store.records import BatchRecord, RowRecord, RowResult, TokenUsage
from gateway.protocol.endpoints import BY_PATH
from gateway.protocol.errors import ApiError, InvalidRequestError, QueueFullError, UnavailableError
from gateway.protocol.generation import GenerationRequest
from schedcore.api.types import RequestClass, Targets

# Of a promoted row: loose, since nobody watches, and such that people's requests come first.
PROMOTED_TARGETS = Targets(ttft_ms=60_000.0, itl_ms=2_000.0)


class NotNowError(Exception):
    """The row cannot run at present, through no fault of its own. It stays pending."""


@dataclass(slots=True)
class RowRun:
    """A row on its way."""

    serving: Serving
    batch: BatchRecord
    row: RowRecord
    budget: RequestBudget
    is_promoted: bool = False
    is_favoured: bool = False  # among offline requests
    nodes: EngineNodes | None = None  # None: the engine is one, or chooses itself
    node: str | None = None  # which of them runs it
    figures: RowFigures | None = None  # of a row that has been answered
    _exchange: Exchange | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it has tokens, which would be lost if it were taken back."""
        return self._exchange is not None and self._exchange.has_begun

    async def result(self) -> RowResult:
        """Raises NotNowError."""
        started_at = self.serving.clock()
        try:
            answer = await self._prepare()
            texts = await self._texts(answer.prepared)
            body = await encode_answer(self.serving, answer, texts)
        except (QueueFullError, UnavailableError, EngineDeadError) as error:
            raise NotNowError(str(error)) from error
        except ApiError as error:
            return self._finished(error.status, error.body())
        self.figures = RowFigures.of(answer.prepared, self.serving.clock() - started_at)
        return self._finished(200, body, answer.prepared)

    def failure(self, error: ApiError) -> RowResult:
        return self._finished(error.status, error.body())

    def _finished(self, status: int, body: bytes, prepared: PreparedRequest | None = None) -> RowResult:
        index = self.row.index
        line = response_line(
            self.batch.id,
            index,
            self.row.custom_id,
            status_code=status,
            request_id=line_id(self.batch.id, index),
            body=body,
        )
        limit = self.serving.config.max_result_bytes
        if status == 200 and len(line) > limit:
            self.figures = None
            return self.failure(_too_large(len(line), limit))
        return RowResult(self.batch.id, index, status != 200, line, _usage(prepared))

    def _profile(self, request: GenerationRequest) -> Profile:
        profile = classify(request, self.batch.tenant, Targets())
        return dataclasses.replace(
            profile,
            request_class=RequestClass.ONLINE if self.is_promoted else RequestClass.OFFLINE,
            priority=FAVOURED if self.is_favoured and not self.is_promoted else 0,
            targets=PROMOTED_TARGETS if self.is_promoted else Targets(),
        )

    async def _prepare(self) -> Answer[Any]:
        """Raises ApiError."""
        serving, now, endpoint = self.serving, self.serving.clock(), BY_PATH[self.batch.endpoint]
        is_background = not self.is_promoted
        request = await decode_body(
            serving, endpoint.decode, self.row.body, self.batch.tenant, is_background=is_background
        )
        if request.stream:
            raise InvalidRequestError("'stream' is not supported in a batch.", param="stream", code="unsupported")
        return await prepare_answer(serving, endpoint, request, self._profile(request), now)

    async def _texts(self, prepared: PreparedRequest) -> list[str]:
        """Raises ApiError, EngineDeadError."""
        async with self.budget.hold(len(prepared.requests)):
            with self._stream(prepared) as stream:
                self._exchange = Exchange(stream, prepared, self.serving.clock, Unobserved())
                return await self._exchange.texts(is_patient=True)

    def _stream(self, prepared: PreparedRequest) -> DeltaStream:
        if self.nodes is None or self.node is None:
            return self.serving.engine.stream(prepared.requests)
        return self.nodes.stream_at(self.node, prepared.requests)


def _too_large(num_bytes: int, limit: int) -> ApiError:
    return InvalidRequestError(
        f"The answer takes {num_bytes} bytes, and a row's may take {limit}: ask for fewer choices ('n'), fewer "
        "log-probabilities or fewer tokens.",
        code="result_too_large",
    )


def _usage(prepared: PreparedRequest | None) -> TokenUsage:
    if prepared is None:
        return TokenUsage()
    usage = prepared.usage()
    return TokenUsage(
        input_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        output_tokens=usage.completion_tokens,
    )

"""The answer to a request, whoever asks: an HTTP client who waits or reads along, or a row of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

import msgspec

from gateway.answers.event_stream import EventStream
from gateway.answers.shown_defaults import with_shown_defaults
from gateway.engine.classify import Profile
from gateway.generation.prepare import PreparedRequest, PromptSpec, prepare
from gateway.generation.serving import Serving
from gateway.generation.truncation import most_encoded
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.protocol.generation import GenerationRequest
from gateway.protocol.response import response_head
from schedcore.api.types import ImageLimits

R = TypeVar("R", bound=GenerationRequest)


class Answer(ABC, Generic[R]):
    """`prepared` goes to the engine; what comes back becomes one `response`, or the `chunks` of a stream."""

    id_prefix: ClassVar[str]
    prompt_param: ClassVar[str]  # the parameter that holds the prompt

    def __init__(self, model: ServedModel, request: R, name: str, prepared: PreparedRequest) -> None:
        """name: of the model, as it is shown."""
        self.prepared = prepared
        self.head = response_head(self.id_prefix, name, prepared.profile.service_tier)
        self._model = model
        self._request = request

    @classmethod
    async def prepare(cls, serving: Serving, request: R, profile: Profile, arrived_at: float) -> Self:
        """Raises NotFoundError, UnavailableError, InvalidRequestError, QueueFullError."""
        model = serving.model
        request = with_shown_defaults(request, serving.config)
        name = model.name(request.model)
        info = serving.ready_engine()
        most = most_encoded(request, info.max_model_len)
        asker = Asker(profile.tenant, most, cls.prompt_param, is_background=profile.is_offline)
        images = await cls._images(model, request, asker, info.images)
        spec = replace(await cls._prompt_spec(model, request, asker), images=images)
        if spec.grammar is not None:
            await serving.grammar_checks.check(spec.grammar, info, asker)
        return cls(model, request, name, prepare(serving, request, spec, profile, arrived_at=arrived_at))

    @abstractmethod
    def response(self, texts: Sequence[str]) -> msgspec.Struct:
        """texts: of each choice, whole. REQUIRES: every choice has finished. Once only."""

    @abstractmethod
    def chunks(self) -> EventStream:
        """Once only."""

    @classmethod
    async def _images(cls, model: ServedModel, request: R, asker: Asker, limits: ImageLimits | None) -> list[bytes]:
        """Of the prompt, in order. limits: of the engine; None: it takes none. Raises as _prompt_spec does."""
        return []

    @classmethod
    @abstractmethod
    async def _prompt_spec(cls, model: ServedModel, request: R, asker: Asker) -> PromptSpec:
        """Templates and tokenises. Raises InvalidRequestError, QueueFullError."""

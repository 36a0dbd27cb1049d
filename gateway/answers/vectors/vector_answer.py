"""The answer to whoever asks for vectors of texts, or for what follows from them: never streamed."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NoReturn, Self, TypeVar

import msgspec

from gateway.answers.answer import Answer
from gateway.engine.classify import Profile
from gateway.generation.prepare import PromptSpec
from gateway.generation.serving import Serving
from gateway.model.served_model import ServedModel
from gateway.model.tokenize import Asker
from gateway.protocol.errors import InvalidRequestError, ServerError
from gateway.protocol.vectors.embeddings import VectorUsage
from gateway.protocol.vectors.vector_request import VectorRequest
from schedcore.api.types import POOLING

V = TypeVar("V", bound=VectorRequest)


class VectorAnswer(Answer[V]):
    prompt_param = "input"

    @classmethod
    async def prepare(cls, serving: Serving, request: V, profile: Profile, arrived_at: float) -> Self:
        """Raises NotFoundError, UnavailableError, InvalidRequestError, QueueFullError."""
        info = serving.ready_engine()
        if POOLING in info.missing:
            raise InvalidRequestError(
                "Embeddings are not supported by this server's engine.", param="model", code="unsupported"
            )
        if request.max_prompt_tokens == -1:
            request = msgspec.structs.replace(request, truncate_prompt_tokens=max(1, info.max_model_len - 1))
        return await super().prepare(serving, request, profile, arrived_at)

    def chunks(self) -> NoReturn:
        raise NotImplementedError("vectors are not streamed")

    @property
    def _vectors(self) -> list[array[float]]:
        """Of each text."""
        return [array("f", vector) for vector in self._bytes]

    @property
    def _bytes(self) -> list[bytes]:
        """float32, little-endian."""
        found = [choice.vector for choice in self.prepared.choices]
        if None in found:
            raise ServerError("The engine made no vector.")
        return [vector or b"" for vector in found]

    @property
    def _usage(self) -> VectorUsage:
        return VectorUsage(self.prepared.num_prompt_tokens, self.prepared.num_prompt_tokens)

    @classmethod
    async def _prompt_spec(cls, model: ServedModel, request: V, asker: Asker) -> PromptSpec:
        pooling = model.pooler.pooling(request.dimensions, request.is_normalized)
        return PromptSpec(
            prompt_param=request.texts_param,
            prompts=await _token_ids(model, request, asker),
            max_tokens=1,
            num_logprobs=None,
            discards_output=True,
            pooling=pooling,
        )


async def _token_ids(model: ServedModel, request: VectorRequest, asker: Asker) -> list[list[int]]:
    """Texts that are cut keep the special tokens around them."""
    texts = [text for text in request.texts if isinstance(text, str)]
    limit, special = request.max_prompt_tokens, request.add_special_tokens
    encoded = iter(await model.tokenizer.encode_all(texts, special and limit is None, asker)) if texts else iter(())
    before, after = model.tokenizer.around if special and limit is not None else ([], [])
    found = []
    for text in request.texts:
        if isinstance(text, str):
            found.append([*before, *_cut(next(encoded), request, len(before) + len(after)), *after])
        else:
            found.append(_cut(text, request, 0))
    return found


def _cut(ids: list[int], request: VectorRequest, num_special: int) -> list[int]:
    limit = request.max_prompt_tokens
    if limit is None:
        return ids
    room = max(0, limit - num_special)
    return ids[:room] if request.truncation_side == "right" else ids[len(ids) - min(room, len(ids)) :]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """REQUIRES: both of length 1, or zero."""
    return sum(map(float.__mul__, a, b))

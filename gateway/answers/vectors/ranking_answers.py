"""The answers to `/rerank` and `/score`: the cosine of the angle between the texts' vectors."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from gateway.answers.vectors.vector_answer import VectorAnswer, cosine
from gateway.protocol.vectors.ranking import (
    Document,
    RankedDocument,
    RerankRequest,
    RerankResponse,
    Score,
    ScoreRequest,
    ScoreResponse,
)


class RerankAnswer(VectorAnswer[RerankRequest]):
    id_prefix = "rerank"

    def response(self, texts: Sequence[str]) -> RerankResponse:
        query, *documents = self._vectors
        scores = [cosine(query, document) for document in documents]
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        return RerankResponse(
            id=self.head.id,
            model=self.head.model,
            usage=self._usage,
            results=[RankedDocument(i, scores[i], self._document(i)) for i in order[: self._request.top_n]],
        )

    def _document(self, index: int) -> Document | UnsetType:
        return Document(str(self._request.texts[1 + index])) if self._request.returns_documents else UNSET


class ScoreAnswer(VectorAnswer[ScoreRequest]):
    id_prefix = "score"

    def response(self, texts: Sequence[str]) -> ScoreResponse:
        num_left = self._request.num_left
        vectors = self._vectors
        left, right = vectors[:num_left], vectors[num_left:]
        left = left * len(right) if num_left == 1 else left
        return ScoreResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            data=[Score(i, cosine(a, b)) for i, (a, b) in enumerate(zip(left, right, strict=True))],
            usage=self._usage,
        )

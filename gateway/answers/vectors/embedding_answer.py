"""The answer to `/v1/embeddings`."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from gateway.answers.vectors.vector_answer import VectorAnswer
from gateway.protocol.vectors.embeddings import Embedding, EmbeddingRequest, EmbeddingResponse


class EmbeddingAnswer(VectorAnswer[EmbeddingRequest]):
    id_prefix = "embd"

    def response(self, texts: Sequence[str]) -> EmbeddingResponse:
        if self._request.is_base64:
            shown: list[list[float] | str] = [base64.b64encode(vector).decode() for vector in self._bytes]
        else:
            shown = [vector.tolist() for vector in self._vectors]
        return EmbeddingResponse(
            id=self.head.id,
            created=self.head.created,
            model=self.head.model,
            data=[Embedding(i, vector) for i, vector in enumerate(shown)],
            usage=self._usage,
        )

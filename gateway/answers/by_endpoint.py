"""How each endpoint is answered."""

from __future__ import annotations

from typing import Any

from gateway.answers.answer import Answer, R
from gateway.answers.chat_answer import ChatAnswer
from gateway.answers.completion_answer import CompletionAnswer
from gateway.answers.messages_answer import MessagesAnswer
from gateway.answers.responses.responses_answer import ResponsesAnswer
from gateway.answers.vectors.embedding_answer import EmbeddingAnswer
from gateway.answers.vectors.ranking_answers import RerankAnswer, ScoreAnswer
from gateway.engine.classify import Profile
from gateway.generation.serving import Serving
from gateway.protocol.endpoints import CHAT, COMPLETIONS, EMBEDDINGS, MESSAGES, RERANK, RESPONSES, SCORE, Endpoint

_ANSWERS: dict[str, type[Answer[Any]]] = {
    CHAT.path: ChatAnswer,
    COMPLETIONS.path: CompletionAnswer,
    RESPONSES.path: ResponsesAnswer,
    MESSAGES.path: MessagesAnswer,
    EMBEDDINGS.path: EmbeddingAnswer,
    **{endpoint.path: RerankAnswer for endpoint in RERANK},
    **{endpoint.path: ScoreAnswer for endpoint in SCORE},
}


async def prepare_answer(
    serving: Serving, endpoint: Endpoint[R], request: R, profile: Profile, arrived_at: float
) -> Answer[R]:
    """Raises NotFoundError, UnavailableError, InvalidRequestError, QueueFullError."""
    return await _ANSWERS[endpoint.path].prepare(serving, request, profile, arrived_at)

"""The endpoints that ask the model for text or vectors: each a value; batches name them by path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from gateway.protocol.chat import decode_chat
from gateway.protocol.completions import decode_completion
from gateway.protocol.generation import GenerationRequest
from gateway.protocol.messages import decode_messages
from gateway.protocol.responses import decode_responses
from gateway.protocol.vectors.embeddings import decode_embeddings
from gateway.protocol.vectors.ranking import decode_rerank, decode_score

BatchPath = Literal[  # that rows of batches may ask
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"
]
R = TypeVar("R", bound=GenerationRequest)


@dataclass(frozen=True, slots=True)
class Endpoint(Generic[R]):
    """What is asked there. How it is answered: gateway/answers/by_endpoint.py."""

    path: str
    decode: Callable[[bytes], R]  # raises InvalidRequestError
    prompt_param: str  # the parameter that a request cannot do without


CHAT = Endpoint("/v1/chat/completions", decode_chat, "messages")
COMPLETIONS = Endpoint("/v1/completions", decode_completion, "prompt")
RESPONSES = Endpoint("/v1/responses", decode_responses, "input")
MESSAGES = Endpoint("/v1/messages", decode_messages, "messages")
EMBEDDINGS = Endpoint("/v1/embeddings", decode_embeddings, "input")
RERANK = tuple(Endpoint(path, decode_rerank, "documents") for path in ("/v1/rerank", "/v2/rerank", "/rerank"))
SCORE = tuple(Endpoint(path, decode_score, "text_2") for path in ("/v1/score", "/score"))
_ALL: tuple[Endpoint[Any], ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS, *RERANK, *SCORE)
BY_PATH = {endpoint.path: endpoint for endpoint in _ALL}

"""`POST /rerank` and `/score`: requests and responses, in the shapes of Jina, Cohere and vLLM."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType

from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.vectors.embeddings import VectorUsage
from gateway.protocol.vectors.vector_request import (
    Text,
    Texts,
    VectorBody,
    VectorRequest,
    as_texts,
    check_texts,
    refuse,
    shared_fields,
)


class Document(msgspec.Struct, frozen=True):
    text: str


class RankingBody(VectorBody, frozen=True, kw_only=True):
    """What is refused, because it changes the answer."""

    max_tokens_per_query: Any = None
    max_tokens_per_doc: Any = None
    instruction: Any = None
    chat_template_kwargs: Any = None
    padding: Any = None
    use_activation: Any = None


class RerankBody(RankingBody, frozen=True, kw_only=True):
    query: str
    documents: Annotated[list[str | Document], Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None  # 0 and null: all
    return_documents: bool | None = None  # default: true, as in vLLM

    # Refused, too
    max_chunks_per_doc: Any = None
    rank_fields: Any = None


class ScoreBody(RankingBody, frozen=True, kw_only=True):
    """Under whichever names."""

    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None
    items: Texts | None = None


class RerankRequest(VectorRequest, frozen=True, kw_only=True):
    """The query is the first of the texts."""

    top_n: int
    returns_documents: bool


class ScoreRequest(VectorRequest, frozen=True, kw_only=True):
    """The first num_left texts against the others: pair by pair, or one against all."""

    num_left: int


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "max_tokens_per_query": (),
    "max_tokens_per_doc": (),
    "instruction": ("",),
    "chat_template_kwargs": ({},),
    "padding": ("do_not_pad",),
    "use_activation": (),
}
_UNSUPPORTED_IN_RERANK: dict[str, tuple[Any, ...]] = {"max_chunks_per_doc": (), "rank_fields": ([],)}
_LEFT, _RIGHT = ("text_1", "data_1", "queries"), ("text_2", "data_2", "documents", "items")
_rerank, _score = msgspec.json.Decoder(RerankBody), msgspec.json.Decoder(ScoreBody)


def decode_rerank(body: bytes) -> RerankRequest:
    """Raises InvalidRequestError."""
    asked = decode_json(_rerank, body)
    refuse(asked, _UNSUPPORTED | _UNSUPPORTED_IN_RERANK)
    documents: list[Text] = [d if isinstance(d, str) else d.text for d in asked.documents]
    check_texts([asked.query], "query")
    check_texts(documents, "documents")
    return RerankRequest(
        **shared_fields(asked),
        texts=[asked.query, *documents],
        texts_param="documents",
        is_normalized=True,
        top_n=asked.top_n or len(documents),
        returns_documents=asked.return_documents is not False,
    )


def decode_score(body: bytes) -> ScoreRequest:
    """Raises InvalidRequestError."""
    asked = decode_json(_score, body)
    refuse(asked, _UNSUPPORTED)
    (left_param, left), (right_param, right) = _one_of(asked, _LEFT), _one_of(asked, _RIGHT)
    check_texts(left, left_param)
    check_texts(right, right_param)
    if len(left) not in (1, len(right)):
        raise InvalidRequestError(
            f"'{left_param}' is one text, or as many as '{right_param}' ({len(right)}), not {len(left)}.",
            param=left_param,
        )
    return ScoreRequest(
        **shared_fields(asked),
        texts=[*left, *right],
        texts_param=right_param,
        is_normalized=True,
        num_left=len(left),
    )


def _one_of(asked: ScoreBody, names: tuple[str, ...]) -> tuple[str, list[Text]]:
    given = [(name, getattr(asked, name)) for name in names if getattr(asked, name) is not None]
    if not given:
        raise InvalidRequestError(
            f"Missing required parameter: '{names[0]}'.", param=names[0], code="missing_parameter"
        )
    if len(given) > 1:
        first, second = given[0][0], given[1][0]
        raise InvalidRequestError(f"'{first}' and '{second}' exclude each other.", param=second)
    name, value = given[0]
    return name, as_texts(value, name)


class RankedDocument(msgspec.Struct, frozen=True):
    index: int
    relevance_score: float
    document: Document | UnsetType = UNSET


class RerankResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    model: str
    usage: VectorUsage
    results: list[RankedDocument]


class Score(msgspec.Struct, frozen=True):
    index: int
    score: float
    object: str = "score"


class ScoreResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage

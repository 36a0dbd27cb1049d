"""`POST /v1/embeddings`: request and response."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.decoding.decode import decode_json
from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.vectors.vector_request import (
    Texts,
    VectorBody,
    VectorRequest,
    as_texts,
    check_texts,
    refuse,
    shared_fields,
)


class EmbeddingBody(VectorBody, frozen=True, kw_only=True):
    input: Texts | None = None
    encoding_format: Literal["float", "base64"] | None = None  # default: float
    dimensions: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    normalize: bool | None = None  # vLLM's; default: as the model has it
    use_activation: bool | None = None  # its newer name

    # Refused: they change the answer
    messages: Any = None
    embed_dtype: Any = None
    endianness: Any = None
    task: Any = None
    padding: Any = None


class EmbeddingRequest(VectorRequest, frozen=True, kw_only=True):
    is_base64: bool = False


_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "messages": (),  # their template is the client's to apply
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "task": ("embed",),
    "padding": ("do_not_pad",),
}
_decoder = msgspec.json.Decoder(EmbeddingBody)


def decode_embeddings(body: bytes) -> EmbeddingRequest:
    """Raises InvalidRequestError."""
    asked = decode_json(_decoder, body)
    refuse(asked, _UNSUPPORTED)
    if asked.input is None:
        raise InvalidRequestError("Missing required parameter: 'input'.", param="input", code="missing_parameter")
    texts = as_texts(asked.input, "input")
    check_texts(texts, "input")
    return EmbeddingRequest(
        **shared_fields(asked),
        texts=texts,
        texts_param="input",
        dimensions=asked.dimensions,
        is_normalized=asked.normalize if asked.use_activation is None else asked.use_activation,
        is_base64=asked.encoding_format == "base64",
    )


class Embedding(msgspec.Struct, frozen=True):
    index: int
    embedding: list[float] | str  # base64: of float32, little-endian
    object: str = "embedding"


class VectorUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: VectorUsage

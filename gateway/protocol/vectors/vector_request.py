"""What embeddings, scores and rankings ask the model: the vectors of texts."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.protocol.errors import InvalidRequestError
from gateway.protocol.generation import GenerationRequest, Name, ServiceTier, TokenId

MAX_TEXTS = 2048  # of one request

Text = str | list[int]
Texts = str | Annotated[list[str | TokenId | list[TokenId]], Meta(min_length=1)]
Cut = Annotated[int, Meta(ge=-1, le=2**31 - 1)] | Literal[False] | None


class VectorBody(msgspec.Struct, frozen=True, kw_only=True):
    """As it is sent: what all of them know. Unknown fields are ignored."""

    model: str | None = None
    user: Name | None = None
    service_tier: ServiceTier | None = None
    priority: Annotated[int, Meta(ge=1 - 2**31, le=2**31 - 1)] | None = None
    cache_salt: Name | None = None
    add_special_tokens: bool | None = None  # default: true
    truncate_prompt_tokens: Cut = None  # -1: what fits
    truncation_side: Literal["left", "right"] | None = None  # that is cut off; default: right


class VectorRequest(GenerationRequest, frozen=True, kw_only=True):
    """What the model is asked; no token is generated."""

    texts: list[Text]
    texts_param: str  # that they came from
    add_special_tokens: bool = True
    dimensions: int | None = None  # None: all
    is_normalized: bool | None = None  # None: as the model has it

    @property
    def num_requests(self) -> int:
        return len(self.texts)


def shared_fields(body: VectorBody) -> dict[str, Any]:
    """Of a VectorRequest. Raises InvalidRequestError."""
    if body.truncate_prompt_tokens == 0 and body.truncate_prompt_tokens is not False:
        raise InvalidRequestError(
            "'truncate_prompt_tokens' must be at least 1, or -1 for what fits.", param="truncate_prompt_tokens"
        )
    names = ("model", "user", "service_tier", "priority", "cache_salt", "truncate_prompt_tokens")
    fields = {name: getattr(body, name) for name in names}
    return fields | {
        "truncation_side": body.truncation_side or "right",
        "add_special_tokens": body.add_special_tokens is not False,
    }


def as_texts(given: Any, param: str) -> list[Text]:
    """A text, token ids, or a list of either. Raises InvalidRequestError."""
    if isinstance(given, str):
        return [given]
    if isinstance(given[0], int):
        given = [given]
        kinds: tuple[type, ...] = (int,)
        items = given[0]
    else:
        kinds, items = (type(given[0]),), given
    for i, item in enumerate(items):
        if not isinstance(item, kinds):
            raise InvalidRequestError(
                f"'{param}' must be text, token ids, or a list of either, not a mixture.", param=f"{param}[{i}]"
            )
    return list(given)


def check_texts(texts: list[Text], param: str) -> None:
    """Raises InvalidRequestError."""
    if len(texts) > MAX_TEXTS:
        raise InvalidRequestError(f"'{param}' makes more than {MAX_TEXTS} texts: send fewer.", param=param)
    if any(not text for text in texts):
        raise InvalidRequestError(f"'{param}' holds an empty text.", param=param)


def refuse(body: msgspec.Struct, unsupported: dict[str, tuple[Any, ...]]) -> None:
    """unsupported: by field, values besides null that ask for nothing. Raises InvalidRequestError."""
    for name, off in unsupported.items():
        value = getattr(body, name)
        if value is not None and value not in off:
            raise InvalidRequestError(f"'{name}' is not supported by this server.", param=name, code="unsupported")

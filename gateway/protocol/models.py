"""`GET /v1/models`."""

from __future__ import annotations

import msgspec


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "model"
    created: int
    owned_by: str = "hocket"
    root: str
    parent: str | None = None  # of an adapter, the model that it is put over
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True):
    data: list[ModelCard]
    object: str = "list"

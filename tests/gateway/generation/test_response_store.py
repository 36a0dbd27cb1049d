"""Responses that are kept."""

from __future__ import annotations

import pytest

from gateway.generation.response_store import ResponseStore, StoredResponse
from gateway.protocol.errors import NotFoundError


def stored(name: str, num_bytes: int = 100) -> StoredResponse:
    return StoredResponse(name, b"{}", (), num_bytes)


def test_each_tenant_sees_its_own() -> None:
    store = ResponseStore(1000)
    store.put("a", stored("r"))
    assert store.get("a", "r").id == "r"
    with pytest.raises(NotFoundError):
        store.get("b", "r")
    store.delete("a", "r")
    assert store.num_bytes == 0
    with pytest.raises(NotFoundError):
        store.delete("a", "r")


def test_whoever_holds_most_loses_the_oldest() -> None:
    store = ResponseStore(1000)
    store.put("small", stored("mine", 200))
    for i in range(20):
        store.put("large", stored(f"r{i}", 150))
    assert store.num_bytes <= 1000
    assert store.get("small", "mine")
    assert store.get("large", "r19")
    with pytest.raises(NotFoundError):
        store.get("large", "r0")


def test_what_is_larger_than_the_store_is_not_kept() -> None:
    store = ResponseStore(0)
    store.put("a", stored("r"))
    with pytest.raises(NotFoundError):
        store.get("a", "r")

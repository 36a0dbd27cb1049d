"""Prompts grow on a thread of their own, tenants' in turns. No vLLM."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from schedcore.api.types import EngineRequest, ErrorCode, ImageLimits, RequestClass
from vllm_engine.images.growing_prompts import GrowingPrompts


class Held:
    """Grows nothing before it is let go."""

    limits = ImageLimits(max_images=1, max_image_bytes=1, max_pixels=1)

    def __init__(self) -> None:
        self.may_go = threading.Event()
        self.has_begun = threading.Event()
        self.grown: list[list[int]] = []

    def grow(self, token_ids: list[int], images: Sequence[bytes], adapter: Any) -> list[int]:
        self.has_begun.set()
        assert self.may_go.wait(30)
        self.grown.append(token_ids)
        if images == [b"bad"]:
            raise ValueError("damaged")
        if images == [b"worse"]:
            raise RuntimeError("of a library")
        return [*token_ids, len(images)]


@pytest.fixture
def grower() -> Held:
    return Held()


@pytest.fixture
def prompts(grower: Held) -> Iterator[GrowingPrompts]:
    made = GrowingPrompts(grower, iter(range(100)).__next__)
    yield made
    grower.may_go.set()
    made.close()


def begin(
    prompts: GrowingPrompts,
    key: int | str,
    images: Sequence[bytes] = (b"x",),
    *,
    tenant: str = "",
    request_class: RequestClass = RequestClass.ONLINE,
) -> None:
    token_ids = [key if isinstance(key, int) else 0]
    request = EngineRequest(1, token_ids, 1, tenant=tenant, request_class=request_class, images=list(images))
    prompts.begin(key, request, token_ids, None)


def taken(prompts: GrowingPrompts, num: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < num:
        prompts.wait(30)
        found += prompts.take()
    return found


def test_they_come_in_their_order_and_say_how_long_it_took(prompts: GrowingPrompts, grower: Held) -> None:
    for i in range(3):
        begin(prompts, i)
    assert prompts.take() == []
    grower.may_go.set()
    found = taken(prompts, 3)
    assert [(each.key, each.prompt, each.error) for each in found] == [(i, [i, 1], None) for i in range(3)]
    assert all(each.seconds > 0 for each in found)
    assert prompts.take() == []


def test_errors_are_the_clients_or_ours(prompts: GrowingPrompts, grower: Held) -> None:
    grower.may_go.set()
    begin(prompts, "bad", [b"bad"])
    begin(prompts, "worse", [b"worse"])
    begin(prompts, "good", [])
    errors = {each.key: each.error for each in taken(prompts, 3)}
    assert (errors["bad"].code, errors["bad"].message) == (ErrorCode.INVALID, "damaged")
    assert errors["worse"].code == ErrorCode.INTERNAL
    assert "library" not in errors["worse"].message
    assert errors["good"] is None


def test_what_is_dropped_does_not_come_and_is_not_grown(prompts: GrowingPrompts, grower: Held) -> None:
    for i in range(3):
        begin(prompts, i)
    prompts.drop(0)  # which may have begun
    prompts.drop(1)
    grower.may_go.set()
    assert [each.key for each in taken(prompts, 1)] == [2]
    assert [1] not in grower.grown
    begin(prompts, 1)
    assert [each.key for each in taken(prompts, 1)] == [1]


def test_what_is_dropped_when_it_is_done_does_not_come(prompts: GrowingPrompts, grower: Held) -> None:
    grower.may_go.set()
    begin(prompts, 1)
    prompts.wait(30)
    prompts.drop(1)
    assert prompts.take() == []
    prompts.wait(30)  # for nothing: returns at once


def test_a_key_that_comes_again_does_not_get_what_was_dropped(prompts: GrowingPrompts, grower: Held) -> None:
    begin(prompts, "again", [b"bad"])
    assert grower.has_begun.wait(30)
    prompts.drop("again")
    begin(prompts, "again", [b"good"])
    grower.may_go.set()
    assert [each.error for each in taken(prompts, 1)] == [None]


def test_tenants_take_turns_and_people_go_before_offline_work(prompts: GrowingPrompts, grower: Held) -> None:
    begin(prompts, 0)  # has begun, or is the first of its line
    begin(prompts, 1, tenant="batch", request_class=RequestClass.OFFLINE)
    for i in range(2, 6):
        begin(prompts, i, tenant="many")
    begin(prompts, 6, tenant="few")
    begin(prompts, 7, tenant="few")
    grower.may_go.set()
    assert [each.key for each in taken(prompts, 8)] == [0, 2, 6, 3, 7, 4, 5, 1]

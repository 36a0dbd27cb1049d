"""Class, priority, targets, tenant and salt of a request."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.engine.classify import PRIORITY_TIER, Profile, classify
from gateway.protocol.generation import GenerationRequest
from schedcore.api.types import RequestClass, Targets

DEFAULTS = Targets(ttft_ms=200.0, itl_ms=30.0)


def profile(tenant: str = "", **fields: Any) -> Profile:
    return classify(GenerationRequest(**fields), tenant, DEFAULTS)


@pytest.mark.parametrize(
    ("tier", "request_class", "priority", "echoed"),
    [
        (None, RequestClass.ONLINE, 0, None),
        ("auto", RequestClass.ONLINE, 0, "default"),
        ("default", RequestClass.ONLINE, 0, "default"),
        ("priority", RequestClass.ONLINE, PRIORITY_TIER, "priority"),
        ("flex", RequestClass.OFFLINE, 0, "flex"),
    ],
)
def test_service_tier(tier: Any, request_class: RequestClass, priority: int, echoed: str | None) -> None:
    p = profile(service_tier=tier)
    assert (p.request_class, p.priority, p.service_tier) == (request_class, priority, echoed)


def test_priority_tier_runs_before_others() -> None:
    assert profile(service_tier="priority").priority < profile().priority


def test_an_operator_may_make_all_equal() -> None:
    def equal(**fields: Any) -> Profile:
        return classify(GenerationRequest(**fields), "", DEFAULTS, allow_priority=False)

    assert equal(service_tier="priority").priority == equal(priority=-5).priority == 0
    assert equal(service_tier="priority").service_tier == "default"
    assert equal(service_tier="flex").is_offline


def test_explicit_priority_wins() -> None:
    assert profile(service_tier="priority", priority=7).priority == 7


def test_nobody_is_favoured_by_asking() -> None:
    assert profile(service_tier="flex", priority=-5).priority == 0
    assert profile(service_tier="flex", priority=5).priority == 5


def test_only_online_requests_have_targets() -> None:
    assert profile().targets == DEFAULTS
    assert profile(service_tier="flex").targets == Targets()
    assert profile(service_tier="flex", ttft_target_ms=5.0, tpot_target_ms=6.0).targets == Targets()


def test_a_requests_target_stands_before_the_default_each_by_itself() -> None:
    assert profile(ttft_target_ms=50.0).targets == Targets(ttft_ms=50.0, itl_ms=30.0)
    assert profile(itl_target_ms=60.0, tpot_target_ms=40.0).targets == Targets(200.0, 60.0, 40.0)


def test_tenants_never_share_a_salt() -> None:
    salts = [profile(tenant, cache_salt=salt).cache_salt for tenant in ("a", "b") for salt in ("", "a", "b")]
    assert len(set(salts)) == len(salts)


def test_session_is_the_prompt_cache_key() -> None:
    assert profile(prompt_cache_key="chat-7").session_id == "chat-7"


def test_the_session_comes_from_the_body_before_the_header() -> None:
    def session(**fields: Any) -> str:
        return classify(GenerationRequest(**fields), "", DEFAULTS, "header").session_id

    assert session(session_id="a", prompt_cache_key="b") == "a"
    assert session(prompt_cache_key="b") == "b"
    assert session() == "header"

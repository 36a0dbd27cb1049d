"""Class, priority, targets, tenant and salt of a request."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.classify import PRIORITY_TIER, Profile, classify
from gateway.config import GatewayConfig
from gateway.protocol.generation import GenerationRequest
from schedcore.types import RequestClass

CONFIG = GatewayConfig(ttft_target_ms=200.0, itl_target_ms=30.0)


def profile(tenant: str = "", **fields: Any) -> Profile:
    return classify(GenerationRequest(**fields), tenant, CONFIG)


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


def test_explicit_priority_wins() -> None:
    assert profile(service_tier="priority", priority=7).priority == 7


def test_nobody_is_favoured_by_asking() -> None:
    assert profile(service_tier="flex", priority=-5).priority == 0
    assert profile(service_tier="flex", priority=5).priority == 5


def test_only_online_requests_have_targets() -> None:
    assert (profile().ttft_target_ms, profile().itl_target_ms) == (200.0, 30.0)
    offline = profile(service_tier="flex")
    assert (offline.ttft_target_ms, offline.itl_target_ms) == (None, None)


def test_tenants_never_share_a_salt() -> None:
    salts = [profile(tenant, cache_salt=salt).cache_salt for tenant in ("a", "b") for salt in ("", "a", "b")]
    assert len(set(salts)) == len(salts)


def test_session_is_the_prompt_cache_key() -> None:
    assert profile(prompt_cache_key="chat-7").session_id == "chat-7"


def test_the_session_comes_from_the_body_before_the_header() -> None:
    def session(**fields: Any) -> str:
        return classify(GenerationRequest(**fields), "", CONFIG, "header").session_id

    assert session(session_id="a", prompt_cache_key="b") == "a"
    assert session(prompt_cache_key="b") == "b"
    assert session() == "header"

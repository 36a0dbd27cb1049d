"""Which traffic a request belongs to, and what it may expect. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config import GatewayConfig
from gateway.protocol.generation import GenerationRequest
from schedcore.types import RequestClass

PRIORITY_TIER = -1  # of service_tier "priority", where smaller runs earlier and others have 0
FAVOURED = -1  # of offline rows, that go before other offline requests; nobody may ask for it


@dataclass(frozen=True, slots=True)
class Profile:
    request_class: RequestClass
    priority: int
    ttft_target_ms: float | None
    itl_target_ms: float | None
    tenant: str
    session_id: str
    cache_salt: str
    service_tier: str | None  # what the response echoes; None: the request did not ask


def classify(request: GenerationRequest, tenant: str, config: GatewayConfig, session_id: str = "") -> Profile:
    """`session_id`: from outside the body, which comes first."""
    is_offline = request.service_tier == "flex"
    priority = PRIORITY_TIER if request.service_tier == "priority" else 0
    if request.priority is not None:
        priority = max(0, request.priority) if is_offline else request.priority
    return Profile(
        request_class=RequestClass.OFFLINE if is_offline else RequestClass.ONLINE,
        priority=priority,
        ttft_target_ms=None if is_offline else config.ttft_target_ms,
        itl_target_ms=None if is_offline else config.itl_target_ms,
        tenant=tenant,
        session_id=request.session_id or request.prompt_cache_key or session_id,
        cache_salt=cache_salt(tenant, request.cache_salt),
        service_tier="default" if request.service_tier == "auto" else request.service_tier,
    )


def cache_salt(tenant: str, salt: str | None) -> str:
    """Tenants share no cache. A tenant is the fingerprint of a key, so it holds no slash and pairs cannot collide."""
    return f"{tenant}/{salt or ''}" if tenant else salt or ""

"""Which traffic a request belongs to, and what it may expect. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.protocol.generation import GenerationRequest
from schedcore.api.types import RequestClass, Targets

PRIORITY_TIER = -1  # of service_tier "priority", where smaller runs earlier and others have 0
FAVOURED = -1  # of offline rows, that go before other offline requests; nobody may ask for it


@dataclass(frozen=True, slots=True)
class Profile:
    request_class: RequestClass
    priority: int
    targets: Targets
    tenant: str
    session_id: str
    cache_salt: str
    service_tier: str | None  # what the response echoes; None: the request did not ask

    @property
    def is_offline(self) -> bool:
        return self.request_class is RequestClass.OFFLINE


def classify(
    request: GenerationRequest,
    tenant: str,
    defaults: Targets,
    session_id: str = "",
    *,
    allow_priority: bool = True,
) -> Profile:
    """`defaults`: the tenant's. `session_id`: from outside the body, which comes first.

    Offline requests have no targets, whatever they ask for: they run in the time that others leave.
    """
    is_offline = request.service_tier == "flex"
    priority = _priority(request, is_offline=is_offline) if allow_priority else 0
    is_default = request.service_tier == "auto" or (request.service_tier == "priority" and not allow_priority)
    return Profile(
        request_class=RequestClass.OFFLINE if is_offline else RequestClass.ONLINE,
        priority=priority,
        targets=Targets() if is_offline else request.targets.over(defaults),
        tenant=tenant,
        session_id=request.session_id or request.prompt_cache_key or session_id,
        cache_salt=cache_salt(tenant, request.cache_salt),
        service_tier="default" if is_default else request.service_tier,
    )


def _priority(request: GenerationRequest, *, is_offline: bool) -> int:
    if request.priority is None:
        return PRIORITY_TIER if request.service_tier == "priority" else 0
    return max(0, request.priority) if is_offline else request.priority


def cache_salt(tenant: str, salt: str | None) -> str:
    """Tenants share no cache. A tenant is the fingerprint of a key, so it holds no slash and pairs cannot collide."""
    return f"{tenant}/{salt or ''}" if tenant else salt or ""

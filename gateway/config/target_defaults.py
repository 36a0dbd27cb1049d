"""The targets of requests that name none: the server's, and those of single API keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.tenants import tenant_of
from schedcore.api.types import Targets

_FORM = "KEY:ttft=MS,itl=MS,tpot=MS"
_NAMES = ("ttft", "itl", "tpot")


@dataclass(frozen=True, slots=True)
class TargetDefaults:
    """Each target by itself: the key's, or else everybody's."""

    everybody: Targets
    by_tenant: Mapping[str, Targets]

    @classmethod
    def parse(cls, everybody: Targets, texts: Sequence[str], api_keys: Sequence[str]) -> TargetDefaults:
        """texts: `KEY:ttft=500,tpot=40`. Raises ValueError, which quotes no key."""
        by_tenant: dict[str, Targets] = {}
        for text in texts:
            key, targets = parse_key_targets(text)
            if key not in api_keys:
                raise ValueError("api_key_targets names an API key that is not configured")
            tenant = tenant_of(key)
            by_tenant[tenant] = targets.over(by_tenant.get(tenant, everybody))
        return cls(everybody, by_tenant)

    def of(self, tenant: str) -> Targets:
        return self.by_tenant.get(tenant, self.everybody)


def parse_key_targets(text: str) -> tuple[str, Targets]:
    """The API key, which may hold colons itself, and what its requests are to see. Raises ValueError."""
    key, _, listed = text.rpartition(":")
    targets: dict[str, float] = {}
    for entry in listed.split(","):
        name, _, value = entry.partition("=")
        if name.strip() not in _NAMES or not key:
            raise ValueError(f"api_key_targets are {_FORM}, any of the three")
        targets[f"{name.strip()}_ms"] = _milliseconds(value)
    return key, Targets(**targets)


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"api_key_targets: a target is a positive number of milliseconds, not {text!r}")
    return value

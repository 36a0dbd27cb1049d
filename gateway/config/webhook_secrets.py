"""Secrets of the configuration, each for one tenant: whose webhooks are believed, or how theirs are signed."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.standard_webhooks import WebhookSecret
from gateway.config.tenants import tenant_of

_PREFIX = "whsec_"


def secrets_by_tenant(texts: Sequence[str], api_keys: Sequence[str]) -> dict[str, list[WebhookSecret]]:
    """`whsec_...`, or `KEY:whsec_...` where there are several API keys. Raises ValueError."""
    found: dict[str, list[WebhookSecret]] = {}
    for text in texts:
        key, colon, secret = text.rpartition(f":{_PREFIX}")
        parsed = WebhookSecret.parse(_PREFIX + secret if colon else text)
        found.setdefault(_tenant(key, bool(colon), api_keys), []).append(parsed)
    return found


def _tenant(key: str, is_named: bool, api_keys: Sequence[str]) -> str:
    if is_named:
        if key not in api_keys:
            raise ValueError("a webhook's secret names an API key that is not configured")
        return tenant_of(key)
    if len(api_keys) > 1:
        raise ValueError("with several API keys a webhook's secret must say whose it is: KEY:whsec_...")
    return tenant_of(api_keys[0]) if api_keys else ""

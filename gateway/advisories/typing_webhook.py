"""Signed notices that somebody types, from chat front ends that speak webhooks (config/standard_webhooks.py)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.config.config import GatewayConfig
from gateway.config.standard_webhooks import ReplayGuard, SignedMessage, WebhookError, verify
from gateway.config.webhook_secrets import secrets_by_tenant
from gateway.protocol.errors import AuthenticationError


@dataclass(frozen=True, slots=True)
class Genuine:
    tenant: str
    message: SignedMessage


class TypingWebhook:
    def __init__(self, config: GatewayConfig) -> None:
        self._secrets = secrets_by_tenant(config.typing_webhook_secrets, config.api_keys)
        self._guards = {tenant: ReplayGuard() for tenant in self._secrets}

    @property
    def is_configured(self) -> bool:
        return bool(self._secrets)

    def verify(self, headers: Mapping[str, str], body: bytes, wall: float) -> Genuine:
        """`wall` in Unix seconds. Raises AuthenticationError."""
        error: WebhookError | None = None
        for tenant, secrets in self._secrets.items():
            try:
                return Genuine(tenant, verify(secrets, headers, body, wall))
            except WebhookError as failure:
                error = failure
        raise AuthenticationError(str(error), code="invalid_signature")

    def claim(self, genuine: Genuine, wall: float) -> bool:
        """False: it was seen before."""
        return self._guards[genuine.tenant].claim(genuine.message, wall)

    def release(self, genuine: Genuine) -> None:
        """It could not be handled; the sender may try again."""
        self._guards[genuine.tenant].release(genuine.message)

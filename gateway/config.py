"""The gateway's configuration: frozen, validated once, one line of meaning per field."""

from __future__ import annotations

import ipaddress

import msgspec

from gateway.webhook_secrets import secrets_by_tenant
from gateway.webhook_targets import WebhookTargets

_QUEUE_LIMITS = ("max_queue_requests", "max_queue_tokens", "max_body_bytes", "max_lease_bytes", "max_advised_sessions")
_OFFLINE_LIMITS = (
    "max_file_bytes",
    "max_batch_file_bytes",
    "max_batch_rows",
    "max_stored_bytes",
    "max_pending_rows",
    "look_ahead_rows",
    "look_ahead_tokens",
)


class GatewayConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Behaviour
    host: str = "127.0.0.1"  # 0.0.0.0 or :: serves other machines too; then set an API key
    port: int = 8000  # 0: any free one
    api_keys: tuple[str, ...] = ()  # each is a tenant of its own; none: everybody may, as one tenant
    served_model_names: tuple[str, ...] = ("demo",)  # the first is shown where a request names none
    enable_access_log: bool = True
    typing_webhook_secrets: tuple[str, ...] = ()  # whsec_..., KEY:whsec_... with several API keys; none: no webhooks
    ttft_target_ms: float | None = None  # of online requests, for policies that hold targets
    itl_target_ms: float | None = None
    max_engine_restarts: int = 10  # of an engine that dies, within ten minutes; 0: a dead engine stays dead

    # Limits
    max_queue_requests: int = 2048  # waiting for their first token, per class; more are answered 429
    max_queue_tokens: int = 8_000_000  # of their prompts, per class
    max_body_bytes: int = 16 * 2**20  # larger bodies are answered 413; a body is held in memory while it is read
    request_timeout_ms: float = 600_000.0  # from arrival to the last token; 0: none
    flex_timeout_ms: float = 3_600_000.0  # the same with service_tier "flex", which waits for online traffic to pause
    body_timeout_ms: float = 60_000.0  # for a client to send its body
    drain_timeout_ms: float = 30_000.0  # after SIGTERM, for open requests to finish
    max_advisories_per_second: float = 100.0  # per tenant, as are the next three; more are answered 429
    max_advisory_bytes_per_second: float = 256 * 2**10  # of their bodies, which may have to be tokenised
    max_lease_bytes: int = 4 * 2**30  # of device memory held for requests that were announced and have not come
    max_advised_sessions: int = 10_000  # remembered; the least recently advised about are forgotten
    max_lease_ms: float = 300_000.0  # longer leases are cut
    keepalive_ms: float = 15_000.0  # of silence before a first token, then a stream gets a comment, so proxies keep it

    # Offline work
    enable_offline: bool = True  # /v1/files and /v1/batches
    data_dir: str | None = None  # of files and the database; None: the user's, see gateway/environment.py
    database_url: str | None = None  # postgresql://user:password@host/name; None: SQLite in the data directory
    max_file_bytes: int = 512 * 2**20  # of an upload
    max_batch_file_bytes: int = 200 * 2**20  # of a batch's input file
    max_batch_rows: int = 50_000
    max_stored_bytes: int = 64 * 2**30  # of one API key's files; more are refused
    enable_prefix_order: bool = True  # rows that begin alike run together; off: in the input file's order
    look_ahead_rows: int = 512  # of batches that the engine sees; more: better prefix sharing, slower to react
    look_ahead_tokens: int = 131_072  # of their prompts
    max_promoted_rows: int = 64  # that run as online requests at a time, when a batch's window nears its end
    max_pending_rows: int = 1_000_000  # of one API key's batches, not yet run; more are refused
    webhook_urls: tuple[str, ...] = ()  # told when a batch ends: URL for all, KEY:URL for one API key's
    webhook_secrets: tuple[str, ...] = ()  # they are signed with: whsec_..., KEY:whsec_... with several API keys
    allow_private_webhooks: bool = False  # whether a batch may name a private address as its webhook

    def __post_init__(self) -> None:
        _require(0 <= self.port <= 65535, "port must be between 0 and 65535")
        _require(bool(self.served_model_names), "served_model_names must not be empty")
        _require(all(self.api_keys), "an API key must not be empty")
        secrets_by_tenant(self.typing_webhook_secrets, self.api_keys)
        _ = self.webhook_targets
        for name in (*_QUEUE_LIMITS, *_OFFLINE_LIMITS):
            _require(getattr(self, name) >= 1, f"{name} must be at least 1")
        for name in (
            "request_timeout_ms",
            "flex_timeout_ms",
            "drain_timeout_ms",
            "max_engine_restarts",
            "max_promoted_rows",
        ):
            _require(getattr(self, name) >= 0, f"{name} must not be negative")
        for name in (
            "body_timeout_ms",
            "keepalive_ms",
            "max_advisories_per_second",
            "max_advisory_bytes_per_second",
            "max_lease_ms",
        ):
            _require(getattr(self, name) > 0, f"{name} must be positive")

    @property
    def webhook_targets(self) -> WebhookTargets:
        return WebhookTargets.parse(
            self.webhook_urls, self.webhook_secrets, self.api_keys, allow_private=self.allow_private_webhooks
        )

    @property
    def is_exposed(self) -> bool:
        """Whether other machines can reach the server."""
        try:
            return not ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host != "localhost"


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)

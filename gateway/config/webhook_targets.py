"""Who is told that a batch has ended: URLs of the configuration, and the one that a batch may name itself."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from gateway.config.standard_webhooks import WebhookSecret
from gateway.config.tenants import tenant_of
from gateway.config.webhook_secrets import secrets_by_tenant
from gateway.protocol.errors import InvalidRequestError

METADATA_KEY = "webhook_url"
_PARAM = f"metadata.{METADATA_KEY}"
_NAMED = re.compile(r"(?:(?P<key>.*?):)?(?P<url>https?://.*)", re.IGNORECASE | re.DOTALL)
# IPv6 addresses whose last four bytes are an IPv4 address: NAT64, IPv4-compatible, IPv4-translated
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96")))
# Not global, although `ipaddress` says so: local NAT64 (its length of prefix is the network's own matter), 6to4 relays
_NOT_PUBLIC = tuple(map(ipaddress.ip_network, ("64:ff9b:1::/48", "192.88.99.0/24")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    is_trusted: bool  # the operator's own choice: it may be on a private network


@dataclass(frozen=True, slots=True)
class WebhookTargets:
    """By tenant; URLs under None are told about everybody's batches. Messages are signed with the tenant's secrets."""

    urls: Mapping[str | None, Sequence[str]] = field(default_factory=dict)
    secrets: Mapping[str, Sequence[WebhookSecret]] = field(default_factory=dict)
    allow_private: bool = False  # whether batches may name private addresses

    @classmethod
    def parse(
        cls, urls: Sequence[str], secrets: Sequence[str], api_keys: Sequence[str], *, allow_private: bool
    ) -> WebhookTargets:
        """`URL` or `KEY:URL`; `whsec_...` or `KEY:whsec_...`. Raises ValueError."""
        by_tenant: dict[str | None, list[str]] = {}
        for text in urls:
            match = _NAMED.fullmatch(text)
            if match is None:
                raise ValueError(f"a webhook's URL starts with http:// or https://, not {text!r}")
            if match["key"] is not None and match["key"] not in api_keys:
                raise ValueError("a webhook's URL names an API key that is not configured")
            _check_form(match["url"])
            by_tenant.setdefault(None if match["key"] is None else tenant_of(match["key"]), []).append(match["url"])
        if urls and not secrets:
            raise ValueError("webhooks are signed: --webhook-url needs --webhook-secret-file")
        return cls(by_tenant, secrets_by_tenant(secrets, api_keys), allow_private)

    def check(self, tenant: str, metadata: Mapping[str, str] | None) -> None:
        """Whether a batch of this metadata can be. Raises InvalidRequestError."""
        url = (metadata or {}).get(METADATA_KEY)
        if url is None:
            return
        if not self.secrets.get(tenant):
            raise InvalidRequestError(
                "This server has no secret to sign your webhooks with (--webhook-secret-file): leave out "
                f"'{_PARAM}', and look at the batch's status instead.",
                param=_PARAM,
                code="webhooks_not_configured",
            )
        try:
            host = _check_form(url)
        except ValueError as error:
            raise InvalidRequestError(f"Invalid value for '{_PARAM}': {error}.", param=_PARAM) from None
        if not self.allow_private and (host == "localhost" or is_private_literal(host)):
            raise InvalidRequestError(
                f"Invalid value for '{_PARAM}': {host} is not a public address.", param=_PARAM, code="private_address"
            )

    def of(self, tenant: str, metadata: Mapping[str, str] | None) -> list[Target]:
        if not self.secrets.get(tenant):
            return []
        targets = [Target(url, True) for key in (None, tenant) for url in self.urls.get(key, ())]
        own = (metadata or {}).get(METADATA_KEY)
        return targets if own is None else [*targets, Target(own, self.allow_private)]


def _check_form(url: str) -> str:
    """The host. Raises ValueError."""
    if not url.isprintable() or " " in url:
        raise ValueError("a URL has no spaces or control characters")
    parts = urlsplit(url)
    _ = parts.port  # raises if it is none
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://HOST/PATH or https://HOST/PATH")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a webhook's URL must not contain a password: the signature proves who sends")
    return parts.hostname


def is_private_literal(host: str) -> bool:
    """Of a host that is an address and no name. Spellings such as 127.1 and 2130706433, which the operating system
    takes for addresses too, are none that we know to be public."""
    if ":" not in host and not host.replace(".", "").isdigit():
        return False
    try:
        return not is_public(ipaddress.ip_address(host))
    except ValueError:
        return True


def is_public(address: Address) -> bool:
    """Also of what an IPv6 address may stand for."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if any(address in network for network in _EMBEDDING):
            inner = ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(inner)
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not address.is_multicast

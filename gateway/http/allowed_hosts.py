"""The names under which a server may be addressed, and the pages that may talk to it.

A page on the internet can have its own name resolve to 127.0.0.1 (DNS rebinding): for the browser our answers are then
the page's own. What gives it away is the name, in Host and in Origin. A page whose name is not ours sends its Origin
with everything but plain GETs, whose answers the browser keeps from it.
"""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from gateway.config.config import GatewayConfig

ANY = "*"
_MAX_REMEMBERED = 64  # values of Host that were found to be allowed


class AllowedHosts:
    """Names as webpack and Django know them: `name`, `.name` with everything below it, `*`.

    names are known     where the server is bound to loopback (localhost, loopback addresses, the given ones), or where
                        some are given (those, localhost, and addresses: nobody can rebind an address)
    names are unknown   else: every Host is good, and an Origin has to be the same as Host
    """

    def __init__(self, config: GatewayConfig) -> None:
        self._is_exposed = config.is_exposed
        self._names = frozenset(name.lower() for name in (config.host, *config.allowed_hosts))
        self._suffixes = tuple(name for name in self._names if name.startswith("."))
        self._is_any = ANY in config.allowed_hosts or (config.is_exposed and not config.allowed_hosts)
        self._origins = frozenset(origin.lower().rstrip("/") for origin in config.allowed_origins)
        # Where names are unknown, a rebinding page cannot be told from ours. Where keys are set, it has none.
        self._checks_origin = ANY not in self._origins and (not self._is_any or not config.api_keys)
        self._remembered: set[str] = set()

    def allows_host(self, host: str) -> bool:
        """`host` is the Host header's value."""
        if self._is_any or host in self._remembered:
            return True
        name = _name_of("//" + host)
        if name is None or not self._is_ours(name):
            return False
        if len(self._remembered) < _MAX_REMEMBERED:
            self._remembered.add(host)
        return True

    def allows_origin(self, origin: str, host: str) -> bool:
        """A request that says so comes from a page of ours, or from one that is allowed to talk to us."""
        if not self._checks_origin or self.shares_with(origin):
            return True
        if not origin.lower().startswith(("http://", "https://")):
            return False
        if _authority(origin) == _authority("//" + host):
            return True
        name = _name_of(origin)
        return not self._is_any and name is not None and self._is_named(name)

    def shares_with(self, origin: str) -> bool:
        """Whether a page from there may read our answers (CORS)."""
        return ANY in self._origins or origin.lower() in self._origins

    @property
    def shares(self) -> bool:
        return bool(self._origins)

    def _is_ours(self, name: str) -> bool:
        return self._is_named(name) or (self._is_exposed and _address(name) is not None)

    def _is_named(self, name: str) -> bool:
        if name in self._names or name == "localhost" or name.endswith((".localhost", *self._suffixes)):
            return True
        address = _address(name)
        return address is not None and address.is_loopback


def _authority(url: str) -> tuple[str | None, int | None]:
    """Name and port; a port that goes without saying is None, as Host has no scheme."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None, -1
    return parts.hostname, None if port in (80, 443) else port


def _name_of(url: str) -> str | None:
    """In lower case, without the dot that may end it; None if there is none or it is malformed."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        return None
    return (parts.hostname or "").removesuffix(".") or None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None

"""Who is asking: API keys and what they stand for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from gateway.protocol.errors import AuthenticationError

_CHALLENGE = {"WWW-Authenticate": "Bearer"}


def tenant_of(api_key: str) -> str:
    """The key's fingerprint, which may be logged."""
    return _digest(api_key).hex()[:16]


class Tenants:
    """Keys are looked up by their digests, so how long that takes says nothing about a key."""

    def __init__(self, api_keys: Iterable[str]) -> None:
        """None: everybody may, as one tenant without a name."""
        self._by_digest = {_digest(key): tenant_of(key) for key in api_keys}

    def find(self, authorization: str | None) -> str | None:
        """By the value of the Authorization header; None if it proves nothing."""
        if not self._by_digest:
            return ""
        scheme, _, key = (authorization or "").partition(" ")
        return self._by_digest.get(_digest(key.strip())) if scheme.lower() == "bearer" else None

    def get(self, authorization: str | None) -> str:
        """Raises AuthenticationError."""
        tenant = self.find(authorization)
        if tenant is not None:
            return tenant
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key:
            raise AuthenticationError("No API key: send 'Authorization: Bearer KEY'.", headers=_CHALLENGE)
        raise AuthenticationError("Incorrect API key.", headers=_CHALLENGE)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()

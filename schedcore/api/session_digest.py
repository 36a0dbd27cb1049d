"""How engines, gateways and the router's table name a session."""

from __future__ import annotations

import hashlib


def session_digest(tenant: str, cache_salt: str, session_id: str) -> int:
    """Of what names a session, for the table: 64 bits, never 0. 0 where there is no session."""
    if not session_id:
        return 0
    parts = (part.encode() for part in (tenant, cache_salt, session_id))
    named = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little") or 1

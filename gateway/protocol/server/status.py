"""What a server says of itself: its health, its load, its version; and of what its operator opened."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class HealthStatus(msgspec.Struct, frozen=True, kw_only=True):
    status: str  # ok, degraded, or why requests are not served
    reason: str | UnsetType = UNSET
    model: str | UnsetType = UNSET
    device: str | UnsetType = UNSET
    dtype: str | UnsetType = UNSET


class ServerLoad(msgspec.Struct, frozen=True):
    server_load: int  # requests that are being served


class ServerVersion(msgspec.Struct, frozen=True):
    version: str


class CacheDropped(msgspec.Struct, frozen=True):
    num_blocks: int  # of the prefix cache, that were dropped

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


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Of a node of a fleet, as this gateway sees it."""

    name: str
    condition: str  # up, starting, suspect, unmanaged, draining, gone
    machine: str
    version: str
    incarnation: str  # of its engine's process; empty while there is none
    endpoint: str
    pid: int
    is_adopted: bool  # its node manager found the engine running
    num_given: int  # requests that this gateway has sent there
    num_open: int  # of these, those without an end
    num_running: int  # of all gateways
    num_waiting: int
    num_sessions: int  # that its engine knows
    pulled_bytes: int = 0  # of cache that came from other nodes, since its engine started
    num_restarts: int  # of its engine
    last_death: str  # of its engine or itself, and why; empty: none yet


class FleetStatus(msgspec.Struct, frozen=True):
    nodes: list[NodeStatus]
    num_waiting: int  # requests that wait for a node
    num_stale_incarnations: int  # messages that were dropped, since they were of an engine or node that is over
    leader: str | None = None  # gateway that says how many nodes are needed; empty: nobody; null: none is elected
    is_leader: bool = False  # that is this one

"""The Ray actor of one node: keeps `hocket node` running where Ray has put it. Nothing a user waits for passes it."""

from __future__ import annotations

from typing import Any

import msgspec
import ray

from gateway.cluster.kept_manager import KeptManager
from gateway.cluster.plan import FleetPlan

_WILDCARDS = ("0.0.0.0", "[::]", "::")


class RayNode:
    """Its arguments and answers are JSON: who talks to it may be of a neighbouring version."""

    def __init__(self, name: str, plan: bytes) -> None:
        decoded = msgspec.json.decode(plan, type=FleetPlan)
        machine = _this_machine()
        listen = str(decoded.file.node.get("listen", ""))
        advertise = str(machine["NodeManagerAddress"]) if listen.rpartition(":")[0] in _WILDCARDS else None
        self._kept = KeptManager(name, decoded, str(machine["NodeName"]), advertise)

    def report(self, plan: bytes) -> bytes:
        """plan: the fleet's, now."""
        return msgspec.json.encode(self._kept.report(msgspec.json.decode(plan, type=FleetPlan)))

    def drain(self) -> None:
        self._kept.drain()


def _this_machine() -> dict[str, Any]:
    """Named as by `ray start --node-name`, else by its address: that outlives its raylet; Ray's number does not."""
    mine = ray.get_runtime_context().get_node_id()
    return next(machine for machine in ray.nodes() if machine["NodeID"] == mine)

"""A fleet's nodes as Ray has them: a detached, named actor each, and what is kept for it."""

from __future__ import annotations

import contextlib
import re
from typing import Any

import msgspec
import ray
from ray.autoscaler.sdk import request_resources
from ray.exceptions import RayError
from ray.util.placement_group import get_placement_group, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from gateway.cluster.fleet_file import Resources
from gateway.cluster.plan import FleetPlan, NodeReport
from gateway.cluster.ray_node import RayNode

ANSWER_SECONDS = 2.0
_PLACING_SECONDS = 0.2  # between a group that is gone and another of its name


class RayNodes:
    """Of the fleet `name`, for who is connected to the cluster."""

    def __init__(self, name: str) -> None:
        self._pattern = re.compile(rf"{re.escape(name)}-\d+")

    def seen(self, plan: FleetPlan) -> dict[str, NodeReport | None]:
        """None: it is being placed or started again, or its machine is gone."""
        asked: dict[Any, str] = {}
        found: dict[str, NodeReport | None] = {}
        for name in ray.util.list_named_actors():
            if self._pattern.fullmatch(name):
                found[name] = None
                with contextlib.suppress(ValueError):  # it has ended meanwhile
                    asked[ray.get_actor(name).report.remote(msgspec.json.encode(plan))] = name
        answered = ray.wait(list(asked), num_returns=len(asked), timeout=ANSWER_SECONDS)[0] if asked else []
        for answer in answered:
            with contextlib.suppress(RayError):
                found[asked[answer]] = msgspec.json.decode(ray.get(answer), type=NodeReport)
        return found

    def start(self, name: str, plan: FleetPlan) -> None:
        options: dict[str, Any] = {"scheduling_strategy": "SPREAD"}
        if bundle := bundle_of(plan.file.resources):
            # A group, not the actor's own claim: what the engine takes stays taken while its actor is started again.
            group = _group(name, bundle)
            options = _claims(bundle) | {
                "scheduling_strategy": PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
                )
            }
        actor = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0)(RayNode)
        options |= {"name": name, "lifetime": "detached", "get_if_exists": True}
        actor.options(**options).remote(name, msgspec.json.encode(plan))

    def drain(self, name: str) -> None:
        with contextlib.suppress(ValueError):
            ray.get_actor(name).drain.remote()

    def remove(self, name: str) -> None:
        """REQUIRES: its node manager has ended, or nobody can reach it."""
        with contextlib.suppress(ValueError):
            ray.kill(ray.get_actor(name), no_restart=True)
        with contextlib.suppress(ValueError):
            remove_placement_group(get_placement_group(name))


def ask_for_machines(plan: FleetPlan) -> None:
    """Of the cluster's autoscaler, where it has one: room for all nodes, also before they are there."""
    if bundle := bundle_of(plan.file.resources):
        request_resources(bundles=[bundle] * plan.num_nodes)


def bundle_of(resources: Resources) -> dict[str, float]:
    """Empty: the node claims nothing, and is put anywhere."""
    known = {"GPU": resources.gpus, "CPU": resources.cpus, "memory": resources.memory_bytes}
    return {name: number for name, number in (known | resources.custom).items() if number}


def _claims(bundle: dict[str, float]) -> dict[str, Any]:
    """All of its group: so Ray tells its processes which GPUs are theirs, and how many threads."""
    custom = {name: number for name, number in bundle.items() if name not in ("GPU", "CPU", "memory")}
    return {
        "num_gpus": bundle.get("GPU", 0),
        "num_cpus": bundle.get("CPU", 0),
        "memory": bundle.get("memory"),
        "resources": custom,
    }


def _group(name: str, bundle: dict[str, float]) -> Any:
    with contextlib.suppress(ValueError):
        return get_placement_group(name)
    return placement_group([bundle], strategy="STRICT_PACK", name=name, lifetime="detached")

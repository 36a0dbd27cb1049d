"""Metrics of the nodes of a fleet behind this gateway (`--fleet-listen`)."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind

NODES = Chapter(
    "Nodes of a fleet",
    "With `--fleet-listen` only: [fleet.md](fleet.md).",
    (
        Family(
            Kind.GAUGE,
            "hocket_node_state",
            "1 for the state that the node is in: up, starting, suspect, unmanaged, draining, gone.",
            lambda r: {(node.name, node.condition): 1.0 for node in r.stats.nodes},
            ("node", "state"),
        ),
        Family(
            Kind.GAUGE,
            "hocket_node_requests",
            "Open requests of this gateway at the node.",
            lambda r: {node.name: float(node.num_open) for node in r.stats.nodes},
            ("node",),
        ),
        Family(
            Kind.COUNTER,
            "hocket_routed",
            "Requests by why they went to their node: cheapest, home (of their session), advised, least_loaded, turn.",
            lambda r: dict(r.stats.num_routed),
            ("reason",),
            "[routing.md](routing.md)",
        ),
        Family(
            Kind.GAUGE,
            "hocket_desired_nodes",
            "Nodes that hold --ttft-target-ms for all gateways' online requests of ten minutes, and one more.",
            lambda r: {} if r.stats.num_desired_nodes is None else float(r.stats.num_desired_nodes),
            detail="Only with that target; of several gateways take the greatest: [deploy.md](deploy.md)",
        ),
        Family(
            Kind.COUNTER,
            "hocket_stale_incarnation",
            "Messages that were dropped, since they were of an engine or a node manager that is over.",
            lambda r: r.stats.num_stale_incarnations,
        ),
    ),
)

"""route() and what it reads: the door to cpp/core/routing, which has the contracts.

The table is its owner's: a gateway tells it what nodes report and what it sends them, a simulation what it simulates.

    table = NodeTable()
    node = table.add_node(NodeTraits(latency), incarnation)
    choice = route(request, table, options, now)
    table.note_choice(request, choice, now)      # once it is carried out
"""

from __future__ import annotations

from schedcore._core import routing
from schedcore.api import session_digest as digests

Choice = routing.Choice
FleetLoop = routing.FleetLoop  # a simulated fleet, for schedcore/simulation/fleet
NodeLoad = routing.NodeLoad
NodeState = routing.NodeState
NodeTable = routing.NodeTable
NodeTraits = routing.NodeTraits
RouteOptions = routing.RouteOptions
RouteReason = routing.RouteReason
RouteRequest = routing.RouteRequest
Routing = routing.Routing
cost_of = routing.cost_of
prefix_keys = routing.prefix_keys
route = routing.route
session_digest = digests.session_digest

ROUTINGS = tuple(name.lower() for name in Routing.__members__)


def routing_named(name: str) -> Routing:
    """Raises ValueError, naming those that exist."""
    if name not in ROUTINGS:
        raise ValueError(f"routing must be one of {', '.join(ROUTINGS)}, not {name!r}")
    return Routing.__members__[name.upper()]

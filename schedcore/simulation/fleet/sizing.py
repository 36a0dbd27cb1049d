"""How many nodes a trace needs: the least number with which first tokens come in time, routed as a gateway routes."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.fleet import Fleet, FleetReport, fleet_trace, simulate_fleet
from schedcore.simulation.planning.fleet import Traffic
from schedcore.simulation.planning.hardware import Hardware
from schedcore.simulation.planning.planner import least_number


class NodesTrial(msgspec.Struct, frozen=True, kw_only=True):
    hardware: str  # of a node
    num_nodes: int
    num_gpus: int  # of all nodes
    report: FleetReport
    is_enough: bool


class NodesPlan(msgspec.Struct, frozen=True, kw_only=True):
    is_simulated: bool = True
    routing: str
    ttft_target_ms: float
    attainment_target_ratio: float
    trials: list[NodesTrial]  # in the order in which they were made
    least: NodesTrial | None  # the fewest GPUs that are enough; None: none of those that were tried


def least_nodes(
    traffic: Traffic, kinds: Sequence[tuple[Hardware, SimulatedEngine]], *, routing: str, ttft_target_s: float,
    attainment: float, max_gpus: int, host_bytes: int = 0,
) -> NodesPlan:  # fmt: skip
    """Over the whole trace. More nodes are taken to be no worse than fewer. Raises ValueError."""
    trials: list[NodesTrial] = []
    best: NodesTrial | None = None
    for hardware, engine in kinds:
        limit = (max_gpus if best is None else best.num_gpus - 1) // hardware.num_gpus
        if limit < 1:
            continue
        found: dict[int, NodesTrial] = {}

        def is_enough(
            num_nodes: int, hardware: Hardware = hardware, engine: SimulatedEngine = engine,
            found: dict[int, NodesTrial] = found,
        ) -> bool:  # fmt: skip
            fleet = Fleet(engine=engine, num_nodes=num_nodes, routing=routing, host_bytes=host_bytes,
                          ttft_target_s=ttft_target_s)  # fmt: skip
            trace = fleet_trace(traffic.workload, traffic.session, fleet.tokens_per_key)
            report = simulate_fleet(fleet, trace).report(ttft_target_s)
            found[num_nodes] = NodesTrial(
                hardware=hardware.name, num_nodes=num_nodes, num_gpus=num_nodes * hardware.num_gpus, report=report,
                is_enough=report.ttft_attained_ratio >= attainment,
            )  # fmt: skip
            trials.append(found[num_nodes])
            return found[num_nodes].is_enough

        least = least_number(is_enough, limit)
        best = best if least is None else found[least]
    return NodesPlan(
        routing=routing, ttft_target_ms=1000 * ttft_target_s, attainment_target_ratio=attainment, trials=trials,
        least=best,
    )  # fmt: skip

"""A fleet under a trace: route() is the gateway's own, engines are modelled by rate, so that a thousand can be served.

What a rate model leaves out stands in cpp/core/simulation/fleet/rate_node.h, and how far it is from the real scheduler
in docs/results/fleet_routing.md.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from schedcore.routing.route import FleetLoop, NodeTraits, RouteOptions, routing_named
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

if TYPE_CHECKING:
    from schedcore._core_routing import FleetTrace

Float64 = npt.NDArray[np.float64]
UInt64 = npt.NDArray[np.uint64]

DEFAULT_TOKENS_PER_KEY = 128
SLICE_S = 60.0  # of simulated time between two reports of progress

Progress = Callable[[int, int], None]  # requests ended, all requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Raises ValueError for an unknown routing. `options` are further fields of RouteOptions."""

    engine: SimulatedEngine  # of each node
    num_nodes: int
    routing: str = "advised"
    nodes_per_machine: int = 1
    num_gateways: int = 1
    host_bytes: int = 0  # below the device, of each node
    can_pull: bool = True
    pull_bytes_per_second: float = 12.5e9  # out of a machine: 100 Gbit/s
    report_interval_s: float = 0.25  # how stale a gateway's table is, beside the delay
    report_delay_s: float = 0.05
    lead_s: float = 0.0  # how long before it comes a follow-up is announced; 0: not at all
    missed_ratio: float = 0.0  # of advisories
    ttft_target_s: float = float("inf")  # that routing heeds
    tokens_per_key: int = DEFAULT_TOKENS_PER_KEY
    max_prefixes: int = 1 << 18  # that a gateway remembers
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        routing_named(self.routing)

    @property
    def traits(self) -> NodeTraits:
        """What each node tells the gateways of itself."""
        engine = self.engine
        per_token = engine.model.kv_bytes_per_token
        device = engine.cache_bytes / per_token
        return NodeTraits(
            engine.cost.to_core(),
            max_batched_tokens=engine.scheduler_config(1).max_num_batched_tokens,
            device_tokens=device,
            kept_tokens=device + self.host_bytes / per_token,
            bytes_per_token=float(per_token),
            restore_bytes_per_second=engine.HOST_BYTES_PER_SECOND if self.host_bytes else 0.0,
            pulls=self.can_pull,
        )


@dataclass(frozen=True, slots=True)
class FleetResult:
    """One entry per request, in order of arrival; times in seconds."""

    arrival_s: npt.NDArray[np.float32]
    ttft_s: npt.NDArray[np.float32]
    e2e_s: npt.NDArray[np.float32]
    num_tokens: npt.NDArray[np.int32]
    num_outputs: npt.NDArray[np.int32]
    num_cached: npt.NDArray[np.int32]
    node: npt.NDArray[np.int16]
    pulled_bytes: float  # between machines
    num_pulls: int
    num_moves: int  # of sessions, to another node than the last
    busy_s: Float64  # [num_nodes]
    computed_tokens: Float64  # [num_nodes]
    duration_s: float

    def report(self, ttft_target_s: float = float("inf"), warm_up_s: float = 0.0) -> FleetReport:
        """Of the requests that came after the warm-up."""
        seen = self.arrival_s >= warm_up_s
        ttft, e2e, outputs = self.ttft_s[seen], self.e2e_s[seen], self.num_outputs[seen]
        per_node = np.bincount(self.node[seen], minlength=len(self.busy_s)) if seen.any() else np.zeros(1)
        p50, p99 = (float(np.percentile(ttft, q)) for q in (50, 99)) if ttft.size else (float("nan"),) * 2
        tpot = (e2e - ttft)[outputs > 1] / (outputs[outputs > 1] - 1)
        return FleetReport(
            num_requests=int(seen.sum()),
            requests_per_second=float(seen.sum()) / max(1e-9, float(self.arrival_s.max()) - warm_up_s),
            ttft_p50_ms=1000 * p50,
            ttft_p99_ms=1000 * p99,
            ttft_attained_ratio=float(np.mean(ttft <= ttft_target_s)) if ttft.size else 0.0,
            tpot_p50_ms=1000 * float(np.median(tpot)) if tpot.size else float("nan"),
            e2e_mean_s=float(np.mean(e2e)) if e2e.size else float("nan"),
            cached_prompt_ratio=float(self.num_cached[seen].sum() / max(1, self.num_tokens[seen].sum(dtype=np.int64))),
            pulled_gib=self.pulled_bytes / 2**30,
            moved_ratio=self.num_moves / max(1, len(self.arrival_s)),
            busy_ratio=float(np.mean(self.busy_s)) / self.duration_s,
            busy_spread=float(np.max(self.busy_s)) / max(1e-9, float(np.mean(self.busy_s))),
            request_spread=float(np.max(per_node)) / max(1e-9, float(np.mean(per_node))),
            duration_s=self.duration_s,
        )


class FleetReport(msgspec.Struct, frozen=True, kw_only=True):
    """Simulated, engines by rate."""

    num_requests: int
    requests_per_second: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    ttft_attained_ratio: float
    tpot_p50_ms: float
    e2e_mean_s: float
    cached_prompt_ratio: float
    pulled_gib: float  # between machines, of the whole run
    moved_ratio: float  # sessions that went to another node, over requests
    busy_ratio: float
    busy_spread: float  # of the busiest node over the mean
    request_spread: float  # of the node with the most requests over the mean
    duration_s: float


def prefix_keys_of(prompts: Prompts, tokens_per_key: int) -> tuple[npt.NDArray[np.int64], UInt64]:
    """Offsets and keys: equal where all streams up to the key's end are. Whole beginnings only."""
    keys: list[int] = []
    offsets = [0]
    for request in range(len(prompts.offsets) - 1):
        runs = range(int(prompts.offsets[request]), int(prompts.offsets[request + 1]))
        key, run, start = 0, runs.start, 0
        for end in range(tokens_per_key, int(prompts.ends[runs.stop - 1]) + 1, tokens_per_key):
            named = [key]
            while start < end:
                stop = min(end, int(prompts.ends[run]))
                named += (int(prompts.streams[run]), stop - start)
                start = stop
                run += int(prompts.ends[run]) == stop
            key = hash(tuple(named)) & 0xFFFF_FFFF_FFFF_FFFF
            keys.append(key)
        offsets.append(len(keys))
    return np.array(offsets, np.int64), np.array(keys, np.uint64)


def fleet_trace(workload: Workload, session_numbers: npt.NDArray[np.int64], tokens_per_key: int) -> FleetTrace:
    """session_numbers: any, equal for the requests of one session.

    Raises ValueError where a request follows another: a fleet's requests have times of their own.
    """
    if np.any(workload.follows != NO_REQUEST):
        raise ValueError("a fleet's requests have times of their own: none may follow another")
    order = np.argsort(workload.arrival_s, kind="stable")
    sessions = session_numbers[order]
    _, first = np.unique(sessions, return_index=True)
    is_follow_up = np.ones(len(sessions), np.uint8)
    is_follow_up[first] = 0
    offsets, keys = prefix_keys_of(workload.prompts.select(order), tokens_per_key)
    start = float(workload.arrival_s.min(initial=np.inf)) if len(workload) else 0.0
    return {
        "arrival_s": workload.arrival_s[order] - start,
        "num_tokens": workload.input_tokens[order].astype(np.int32),
        "num_outputs": workload.output_tokens[order].astype(np.int32),
        "session": sessions.astype(np.int64),
        "is_follow_up": is_follow_up,
        "key_offsets": offsets,
        "keys": keys,
    }


def simulate_fleet(
    fleet: Fleet, trace: FleetTrace, *, num_copies: int = 1, num_common_keys: int = 0, spread_s: float = 0.0,
    seed: int = 0, on_progress: Progress | None = None,
) -> FleetResult:  # fmt: skip
    """Until everything has ended. Copies of the trace come at once; their prompts share the first `num_common_keys`.

    The same arguments give the same result, bit by bit. Raises ValueError for what makes no sense.
    """
    loop = FleetLoop(
        trace, fleet.traits, RouteOptions(routing_named(fleet.routing), **fleet.options),
        num_nodes=fleet.num_nodes, nodes_per_machine=fleet.nodes_per_machine, num_gateways=fleet.num_gateways,
        num_copies=num_copies, num_common_keys=num_common_keys, spread_s=spread_s,
        report_interval_s=fleet.report_interval_s, report_delay_s=fleet.report_delay_s,
        pull_bytes_per_second=fleet.pull_bytes_per_second, host_bytes_per_second=fleet.engine.HOST_BYTES_PER_SECOND,
        lead_s=fleet.lead_s, missed_ratio=fleet.missed_ratio, ttft_target_s=fleet.ttft_target_s, seed=seed,
        max_running=fleet.engine.scheduler_config(1).max_num_seqs, tokens_per_key=fleet.tokens_per_key,
        max_prefixes=fleet.max_prefixes,
    )  # fmt: skip
    until = SLICE_S
    while loop.run(until):
        until += SLICE_S
        if on_progress is not None:
            on_progress(loop.num_ended, len(loop))
    found: dict[str, Any] = {**loop.records(), **loop.totals()}
    return FleetResult(**found, duration_s=loop.now)

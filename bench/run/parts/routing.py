"""Decisions of the router per second on one core: 1,000 nodes, 100,000 sessions, prompts of 24 keys.

    python -m bench.run.parts.routing [--nodes 1000] [--sessions 100000] [--routing advised] [--json]

One decision is route() and note_choice(), through the Python binding as in a gateway; reports of loads come in between,
two per node and second at 1,000 decisions a second. Goal: 10,000 a second.
"""

from __future__ import annotations

import argparse
import json
import time

import numpy as np

from schedcore.routing.route import (
    ROUTINGS,
    NodeLoad,
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteRequest,
    route,
    routing_named,
)
from schedcore.simulation.cost_model import find_cost
from schedcore.simulation.model_shape import model_shape

NUM_KEYS = 24
TOKENS_PER_KEY = 512
NUM_SHARED = 2  # of a prompt's keys, with other sessions
RATE = 1000.0  # decisions per second of the table's time
REPORTS_PER_DECISION = 2  # for 1,000 nodes: two per node and second


def measure(num_nodes: int, num_sessions: int, num_decisions: int, routing: str) -> dict[str, float]:
    rng = np.random.default_rng(0)
    latency = find_cost(model_shape("llama-3-8b"), "a100").to_core()
    table = NodeTable(max_prefixes=1 << 20)
    for node in range(num_nodes):
        traits = NodeTraits(
            latency, device_tokens=4e5, kept_tokens=4e6, bytes_per_token=131_072, restore_bytes_per_second=24e9,
            machine=node // 4,
        )  # fmt: skip
        table.add_node(traits, 1)
    shared = rng.integers(1, 2**63, (50, NUM_SHARED)).astype(np.uint64)
    options = RouteOptions(routing_named(routing))
    took = np.empty(num_decisions, np.int64)
    for number in range(-num_sessions, num_decisions):  # first every session once
        session = number % num_sessions if number < 0 else int(rng.integers(num_sessions))
        now = (number + num_sessions) / RATE
        own = np.random.default_rng(session).integers(1, 2**63, NUM_KEYS - NUM_SHARED).astype(np.uint64)
        keys = np.concatenate([shared[session % len(shared)], own])
        for _ in range(REPORTS_PER_DECISION):
            queue, running = float(rng.exponential(0.3)), int(rng.integers(0, 100))
            table.note_load(int(rng.integers(num_nodes)), 1, NodeLoad(now - 0.1, queue, 0, running, 800.0 * running))
        begin = time.perf_counter_ns()
        request = RouteRequest(number & 0xFFFF_FFFF, NUM_KEYS * TOKENS_PER_KEY + 100, keys=keys, session=session + 1)
        choice = route(request, table, options, now)
        table.note_choice(request, choice, now)
        if number >= 0:
            took[number] = time.perf_counter_ns() - begin
    p50, p99 = np.percentile(took, (50, 99)) / 1000
    return {"per_second": 1e9 / float(took.mean()), "p50_us": float(p50), "p99_us": float(p99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--decisions", type=int, default=100_000)
    parser.add_argument("--routing", choices=ROUTINGS, default="advised")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = measure(args.nodes, args.sessions, args.decisions, args.routing)
    if args.json:
        print(json.dumps(found))
        return
    print(
        f"{args.routing}, {args.nodes} nodes, {args.sessions} sessions: {found['per_second']:.0f} decisions/s, "
        f"p50 {found['p50_us']:.1f} us, p99 {found['p99_us']:.1f} us"
    )


if __name__ == "__main__":
    main()

"""A fleet that is stepped as Ray would: whatever it is, it becomes what it shall be, and serves meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from gateway.cluster.fleet_file import FleetFile
from gateway.cluster.plan import DrainStep, FleetPlan, Keeping, NodeReport, Remove, Start, next_steps

FILE = FleetFile(gateways=("127.0.0.1:7000",), run_dir="/run/x")
OTHER = replace(FILE, node={"max-num-seqs": 7})
ROUNDS = 60  # more than any of these takes


def report(plan: FleetPlan, name: str, keeping: Keeping = Keeping.RUNNING, *, is_ready: bool = True) -> NodeReport:
    return NodeReport(name=name, digest=plan.digest, generation=plan.generation, keeping=keeping, is_ready=is_ready)


@dataclass
class Machines:
    """Each step takes effect between two looks: a drained node ends, one that was started is ready a look later."""

    nodes: dict[str, NodeReport | None]
    least_ready: int = 1 << 30
    drained: list[str] = field(default_factory=list)

    def take(self, plan: FleetPlan) -> int:
        for name, node in self.nodes.items():
            if node is not None and node.keeping is Keeping.DRAINING:
                self.nodes[name] = replace(node, keeping=Keeping.ENDED, is_ready=False)
            elif node is not None and node.keeping is Keeping.RUNNING:
                self.nodes[name] = replace(node, is_ready=True)
        steps = next_steps(plan, dict(self.nodes))
        for step in steps:
            match step:
                case Start(name):
                    assert name not in self.nodes
                    self.nodes[name] = report(plan, name, is_ready=False)
                case DrainStep(name):
                    node = self.nodes[name]
                    assert node is not None
                    self.drained.append(name)
                    self.nodes[name] = replace(node, keeping=Keeping.DRAINING)
                case Remove(name):
                    node = self.nodes.pop(name)
                    assert node is not None
                    assert node.keeping in (Keeping.ENDED, Keeping.LEFT)
        ready = [node for node in self.nodes.values() if node and node.keeping is Keeping.RUNNING and node.is_ready]
        self.least_ready = min(self.least_ready, len(ready))
        return len(steps)


def settle(machines: Machines, plan: FleetPlan) -> None:
    for _ in range(ROUNDS):
        machines.take(plan)
    assert machines.take(plan) == 0


def states() -> st.SearchStrategy[dict[str, NodeReport | None]]:
    plans = st.sampled_from([FleetPlan(FILE, 3, 1), FleetPlan(OTHER, 3, 1), FleetPlan(OTHER, 3, 2)])
    node = st.builds(report, plans, st.just(""), st.sampled_from(list(Keeping)), is_ready=st.booleans())
    return st.dictionaries(st.sampled_from([f"hocket-{i}" for i in range(1, 7)]), node).map(
        lambda nodes: {name: replace(made, name=name) for name, made in nodes.items()}
    )


@settings(max_examples=300, deadline=None)
@given(states(), st.integers(0, 5))
def test_whatever_there_is_becomes_what_shall_be(nodes: dict[str, NodeReport | None], num_nodes: int) -> None:
    plan = FleetPlan(FILE, num_nodes, 2)
    machines = Machines(dict(nodes))
    settle(machines, plan)
    for name, node in machines.nodes.items():
        assert node is not None
        stays_away = node.keeping is Keeping.LEFT and node.generation >= plan.generation
        assert stays_away or (name in plan.names and node.digest == plan.digest and node.is_ready)
    assert set(plan.names) <= set(machines.nodes)


def whole(plan: FleetPlan) -> Machines:
    return Machines({name: report(plan, name) for name in plan.names})


def test_a_changed_configuration_replaces_one_node_at_a_time() -> None:
    machines = whole(FleetPlan(FILE, 4, 1))
    plan = FleetPlan(OTHER, 4, 2)
    settle(machines, plan)
    assert machines.least_ready == 3
    assert sorted(machines.drained) == plan.names


def test_nodes_that_serve_nobody_are_replaced_at_once() -> None:
    before, plan = FleetPlan(OTHER, 3, 1), FleetPlan(FILE, 3, 2)
    seen = {name: report(before, name, is_ready=False) for name in before.names}
    assert next_steps(plan, seen) == [DrainStep(name) for name in plan.names]


def test_nothing_is_replaced_while_a_node_is_missed() -> None:
    before, plan = FleetPlan(OTHER, 3, 1), FleetPlan(FILE, 3, 2)
    seen: dict[str, NodeReport | None] = {name: report(before, name) for name in before.names}
    assert next_steps(plan, seen | {"hocket-2": None}) == []
    del seen["hocket-2"]
    assert next_steps(plan, seen) == [Start("hocket-2")]


def test_what_an_operator_drained_stays_away_until_the_plan_changes() -> None:
    plan = FleetPlan(FILE, 3, 1)
    machines = whole(plan)
    machines.nodes["hocket-2"] = report(plan, "hocket-2", Keeping.LEFT, is_ready=False)
    assert machines.take(plan) == 0
    changed = FleetPlan(FILE, 3, 2)
    settle(machines, changed)
    assert machines.nodes["hocket-2"] == report(changed, "hocket-2")


def test_fewer_nodes_drains_the_last_ones() -> None:
    machines = whole(FleetPlan(FILE, 3, 1))
    settle(machines, FleetPlan(FILE, 1, 2))
    assert set(machines.nodes) == {"hocket-1"}
    assert sorted(machines.drained) == ["hocket-2", "hocket-3"]


def test_what_a_node_is_not_started_with_replaces_nothing() -> None:
    def digests() -> Iterator[str]:
        yield FleetPlan(FILE, 3, 1).digest
        yield FleetPlan(FILE, 5, 9).digest
        yield FleetPlan(replace(FILE, nodes=7), 3, 1).digest

    assert len(set(digests())) == 1
    assert FleetPlan(replace(FILE, model="other"), 3, 1).digest not in set(digests())

"""`hocket fleet` on a Ray cluster: up, status, scale, down. Ray is imported by who calls one of them, not before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import msgspec

from gateway.base.console import say
from gateway.cli.node import add_arguments as add_node_arguments
from gateway.cli.options import given_fields, split_names
from gateway.cli.parser import Parser
from gateway.cluster.errors import FleetFileError, NoRayError, RayFleetError
from gateway.cluster.fleet_file import FleetFile, read_fleet_file
from gateway.cluster.plan import FleetReport, Keeping, NodeReport
from gateway.config.environment import ray_variables
from gateway.config.node_config import NodeConfig

_DONE, _FAILED = 0, 1  # exit statuses
_COLUMNS = ("node", "keeping", "machine", "ready", "restarts", "manager", "engine", "last exit")


FAILURES = (NoRayError, RayFleetError)


def add_ray_verbs(verbs: Any) -> None:
    scale = verbs.add_parser("scale", help="change the number of nodes that Ray keeps running")
    scale.add_argument("number", type=int, metavar="N", help="of nodes; those that are too many are drained")
    down = verbs.add_parser("down", help="drain all nodes that Ray keeps running, and end the fleet")
    for verb in (scale, down):
        add_ray_options(verb, is_required=True)
        _add_wait(verb, "until it is so")
    environment = verbs.add_parser("env", help='variables for `ray start`: eval "$(hocket fleet env)"')
    environment.add_argument("--storage", metavar="DIR", help="that survives the head: its state is kept there")


def add_up_options(up: argparse.ArgumentParser, where: argparse._MutuallyExclusiveGroup) -> None:
    where.add_argument(
        "--ray", metavar="ADDRESS", help="keep the nodes of fleet.toml running there: HOST:PORT, or auto"
    )
    _add_wait(up, "until all nodes are ready")


def add_ray_options(verb: argparse._ActionsContainer, *, is_required: bool = False) -> None:
    verb.add_argument("--ray", metavar="ADDRESS", required=is_required, help="of the Ray cluster: HOST:PORT, or auto")
    verb.add_argument("--fleet", default="hocket", metavar="NAME", help="`name` in its fleet.toml (default: hocket)")


def _add_wait(verb: argparse.ArgumentParser, until: str) -> None:
    verb.add_argument("--wait", type=float, default=300.0, metavar="SECONDS", help=f"{until} (default: 300)")


def up(args: argparse.Namespace) -> int:
    file = checked_fleet_file(Path(args.model))
    ray_cluster = _ray_cluster()
    with ray_cluster.connected(args.ray):
        fleet, progress = ray_cluster.RayFleet(file.name), _Progress()
        fleet.up(file)
        if fleet.wait(_is_up, progress.look, args.wait):
            return _DONE
        say(f"not all nodes are ready after {args.wait:g} s; they go on: `hocket fleet status --ray {args.ray}`")
        return _FAILED


def status(args: argparse.Namespace) -> int:
    ray_cluster = _ray_cluster()
    with ray_cluster.connected(args.ray):
        report = ray_cluster.RayFleet(args.fleet).report()
    if args.json:
        print(msgspec.json.encode(report).decode())
        return _DONE
    rows = [_COLUMNS, *(_row(name, node) for name, node in sorted(report.nodes.items()))]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if report.problem:
        print(f"problem: {report.problem}")
    return _DONE if _is_up(report) else _FAILED


def scale(args: argparse.Namespace) -> int:
    if args.number < 1:
        raise ValueError("N: at least one node; `hocket fleet down` ends all")
    ray_cluster = _ray_cluster()
    with ray_cluster.connected(args.ray):
        fleet = ray_cluster.RayFleet(args.fleet)
        fleet.scale(args.number)
        is_done = fleet.wait(lambda report: _is_up(report, args.number), _Progress().look, args.wait)
    return _DONE if is_done else _FAILED


def down(args: argparse.Namespace) -> int:
    ray_cluster = _ray_cluster()
    with ray_cluster.connected(args.ray):
        is_done = ray_cluster.RayFleet(args.fleet).down(_Progress().look, args.wait)
    if not is_done:
        say(f"nodes are left after {args.wait:g} s; they go on ending: `hocket fleet down` once more")
    return _DONE if is_done else _FAILED


def env(args: argparse.Namespace) -> int:
    for name, value in ray_variables(args.storage).items():
        print(f"export {name}={value!r}")
    return _DONE


def checked_fleet_file(path: Path) -> FleetFile:
    """Also what it says to `hocket node`, by that command's own reading. Raises FleetFileError; exits as parsers do."""
    file = read_fleet_file(path)
    parser = Parser(prog=f"{path} [node]", add_help=False)
    add_node_arguments(parser)
    options = vars(parser.parse_args([*file.node_arguments(), "--name=checked"]))
    fields = given_fields(options, NodeConfig)
    try:
        NodeConfig(**fields | {"gateways": split_names(fields["gateways"])})
    except ValueError as error:
        raise FleetFileError(f"{path}: {error}") from None
    return file


def _ray_cluster() -> Any:
    try:
        from gateway.cluster import ray_cluster
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise NoRayError("Ray is not installed: pip install 'hocket-server[ray]'") from None
    return ray_cluster


def _is_up(report: FleetReport, number: int | None = None) -> bool:
    """All that shall be there, and nobody else; those that an operator drained stay away."""
    plan, nodes = report.plan, report.nodes
    if set(nodes) != set(plan.names) or number not in (None, plan.num_nodes):
        return False
    return all(
        node is not None and (node.keeping is Keeping.LEFT or (node.is_ready and node.digest == plan.digest))
        for node in nodes.values()
    )


def _row(name: str, node: NodeReport | None) -> tuple[str, ...]:
    if node is None:
        return (name, "unknown", "-", "-", "-", "-", "-", "does not answer: being placed, or started again")
    ready = "adopted" if node.is_ready and node.is_adopted else "yes" if node.is_ready else "no"
    pids = (str(pid or "-") for pid in (node.pid, node.engine_pid))
    return (name, node.keeping, node.machine, ready, str(node.num_restarts), *pids, node.last_exit or "-")


class _Progress:
    """Says what has changed since the last look."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}
        self._problem = ""

    def look(self, report: FleetReport) -> None:
        for name, node in sorted(report.nodes.items()):
            self._say(name, _state(node))
        for name in self._said.keys() - report.nodes.keys():
            self._say(name, "gone")
        if report.problem and report.problem != self._problem:
            say(report.problem)
        self._problem = report.problem

    def _say(self, name: str, state: str) -> None:
        if self._said.get(name) != state:
            self._said[name] = state
            say(f"{name}: {state}")


def _state(node: NodeReport | None) -> str:
    if node is None:
        return "waits for a machine, or is started again"
    if node.last_exit and not node.is_ready:
        return f"its manager ended: {node.last_exit}"
    what = "ready" if node.keeping is Keeping.RUNNING and node.is_ready else node.keeping
    return f"{what} on {node.machine}"

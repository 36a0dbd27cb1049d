"""`hocket fleet`: certificates of a cluster, a fleet on this machine or on Ray, the state of one, a node drained."""

from __future__ import annotations

import argparse
import asyncio
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.cli.client_options import add_client_options
from gateway.cli.clusters import on_ray
from gateway.cli.parser import Parser, examples
from gateway.cluster.errors import FleetFileError
from gateway.fleet.certificates import CertificatesError, make_certificates
from gateway.fleet.operator_line import OrderError, give_order
from gateway.node.local_fleet import LocalFleet
from gateway.protocol.server.status import FleetStatus, NodeStatus
from hocket import Client
from schedcore.api.cluster_tls import OPERATOR, ClusterTls, ClusterTlsError
from schedcore.api.fleet_wire import DrainNode
from schedcore.api.frame_socket import NETWORK_SCHEME, network_address
from schedcore.api.model_path import DEMO

_DONE, _FAILED, _MISUSED = 0, 1, 2  # exit statuses
_TIMEOUT_SECONDS = 10.0
_COLUMNS = ("node", "state", "open", "running", "waiting", "sessions", "restarts", "engine", "last death")
EXAMPLES = examples(
    "hocket fleet up --local 3                      # one gateway and three nodes on this machine",
    "hocket fleet init /etc/hocket                  # a cluster's certificates",
    "hocket fleet up fleet.toml --ray auto          # its nodes, kept running by a Ray cluster",
    "hocket fleet scale 5 --ray auto",
    "hocket fleet status --url http://gw1:8000",
    "hocket fleet drain node-2 --gateway gw1:7000 --cluster-dir /etc/hocket",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=Parser)
    init = verbs.add_parser("init", help="make a cluster's certificates: an authority, and one per role")
    init.add_argument("folder", type=Path, metavar="DIR", help="copied to each machine, with the files of its role")
    up = verbs.add_parser("up", help="a gateway and nodes on this machine, until Ctrl-C; or nodes on a Ray cluster")
    up.add_argument("model", nargs="?", metavar="MODEL|FILE", help=f"default: {DEMO}; with --ray a fleet.toml")
    where = up.add_mutually_exclusive_group(required=True)
    where.add_argument("--local", type=int, metavar="N", help="nodes, on this machine")
    on_ray.add_up_options(up, where)
    up.add_argument("--port", default="8000", help="of the gateway (default: 8000)")
    up.add_argument("--run-dir", type=Path, default=Path("hocket-fleet"), metavar="DIR", help="of the nodes")
    up.add_argument("--data-dir", metavar="DIR", help="of the gateway's files and batches (default: as serve's)")
    status = verbs.add_parser("status", help="the nodes behind a gateway")
    add_client_options(status.add_argument_group("server"))
    status.add_argument("--json", action="store_true", help="as the gateway says it")
    on_ray.add_ray_options(status.add_argument_group("instead of a server"))
    on_ray.add_ray_verbs(verbs)
    drain = verbs.add_parser("drain", help="a node takes no new requests, and leaves when the open ones have ended")
    drain.add_argument("node", metavar="NODE")
    drain.add_argument("--gateway", required=True, metavar="HOST:PORT", help="its --fleet-listen")
    drain.add_argument("--cluster-dir", type=Path, metavar="DIR", help="ca.pem and operator.pem")
    drain.add_argument("--deadline", type=float, default=60.0, metavar="SECONDS", help="then it leaves (default: 60)")


def run(args: argparse.Namespace) -> int:
    """The exit status."""
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {
        "init": init, "up": up, "status": status, "drain": drain,
        "scale": on_ray.scale, "down": on_ray.down, "env": on_ray.env,
    }  # fmt: skip
    try:
        return verbs[args.verb](args)
    except (FleetFileError, ValueError) as error:
        return _complain(str(error), _MISUSED)
    except on_ray.FAILURES as error:
        return _complain(str(error), _FAILED)
    except (CertificatesError, ClusterTlsError, OrderError, OSError) as error:
        return _complain(str(error), _FAILED)


def init(args: argparse.Namespace) -> int:
    for path in make_certificates(args.folder):
        print(path)
    return _DONE


def up(args: argparse.Namespace) -> int:
    if args.ray is not None:
        if args.model is None:
            raise ValueError("--ray: name the file that says what shall run: hocket fleet up fleet.toml --ray auto")
        return on_ray.up(args)
    if args.local < 1:
        raise ValueError("--local: at least one node")
    options = ["--port", args.port]
    if args.data_dir:
        options += ["--data-dir", args.data_dir]
    return LocalFleet(args.model or DEMO, args.local, args.run_dir, options).run()


def status(args: argparse.Namespace) -> int:
    if args.ray is not None:
        return on_ray.status(args)
    with Client(args.url, api_key=args.api_key) as client:
        content = _get(f"{client.options.base_url}/fleet", client.options.api_key)
    if args.json:
        print(content.decode())
        return _DONE
    found = msgspec.json.decode(content, type=FleetStatus)
    rows = [_COLUMNS, *(_row(node) for node in found.nodes)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if found.leader is not None:
        print(f"leader: {found.leader or '-'}{' (this gateway)' if found.is_leader else ''}")
    if found.num_waiting:
        print(f"{found.num_waiting} requests wait for a node")
    return _DONE if any(node.condition == "up" for node in found.nodes) else _FAILED


def drain(args: argparse.Namespace) -> int:
    endpoint = NETWORK_SCHEME + args.gateway
    network_address(endpoint)
    tls = None if args.cluster_dir is None else ClusterTls(args.cluster_dir, OPERATOR)
    asyncio.run(give_order(endpoint, tls, DrainNode(args.node, args.deadline)))
    print(f"{args.node} drains")
    return _DONE


def _row(node: NodeStatus) -> tuple[str, ...]:
    counts = (node.num_open, node.num_running, node.num_waiting, node.num_sessions, node.num_restarts)
    return (node.name, node.condition, *map(str, counts), node.incarnation[:8] or "-", node.last_death or "-")


def _get(url: str, key: str | None) -> bytes:
    """Raises OSError, ValueError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_SECONDS) as answer:
            content: bytes = answer.read()
            return content
    except urllib.error.HTTPError as error:
        raise OSError(f"{url} answers with status {error.code}: {error.read(300).decode(errors='replace')}") from None
    except urllib.error.URLError as error:
        raise OSError(f"{url} cannot be reached: {error.reason}") from None


def _complain(message: str, status: int) -> int:
    print(f"hocket fleet: {message}", file=sys.stderr)
    return status

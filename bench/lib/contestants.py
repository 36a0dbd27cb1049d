"""The servers of a run: ours, and a peer on the same weights if one is given. Options and processes."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.lib import results
from bench.lib.model.random_model import SHAPES, ensure_checkpoint
from bench.lib.server.server_process import ServerProcess, end_with_signals

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results"
MODELS = ROOT / "models"
DEMO_MODEL = ROOT / "worker" / "demo_model"
OURS = "hocket"
OUR_COMMAND = f"{shlex.quote(str(Path(sys.executable).with_name('hocket')))} serve {{model}} --port {{port}}"


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--server-command", default=OUR_COMMAND, help="shell command with {model} and {port}")
    parser.add_argument("--peer", default="peer", help="what to call the peer")
    parser.add_argument("--peer-command", help="shell command with {model} and {port}")
    parser.add_argument("--peer-only", action="store_true", help="measure the peer without our server")


def commands(arguments: argparse.Namespace) -> dict[str, str]:
    """Name -> command. Exits with a usage message if there is no server."""
    if arguments.peer_only and not arguments.peer_command:
        sys.exit("--peer-only needs --peer-command")
    chosen = {} if arguments.peer_only else {OURS: arguments.server_command}
    return chosen | ({arguments.peer: arguments.peer_command} if arguments.peer_command else {})


def model_folder(name: str) -> Path:
    """`demo`, the name of a random model (made if it is not there), or a checkpoint's folder."""
    if name == "demo":
        return DEMO_MODEL
    return ensure_checkpoint(name, MODELS) if name in SHAPES else Path(name).resolve()


@contextlib.contextmanager
def running(folder: Path, commands: dict[str, str]) -> Iterator[list[ServerProcess]]:
    """Started one after the other, at rest, stopped together; of several, each runs in its turn() only."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        servers = []
        for name, command in commands.items():
            print(f"{folder.name}: starting {name}", file=sys.stderr)
            log = RESULTS / f"{folder.name}-{name}.log"
            servers.append(stack.enter_context(ServerProcess(name, command, shlex.quote(str(folder)), log)))
        for server in servers:
            server.takes_turns = len(servers) > 1
            with server.turn():
                server.wait_until_idle()
        yield servers


def facts(servers: list[ServerProcess], idle_rss: list[int]) -> list[results.ServerFacts]:
    return [
        results.ServerFacts(server.name, server.command, server.startup_seconds, idle, server.rss_bytes())
        for server, idle in zip(servers, idle_rss, strict=True)
    ]


def prepare_process() -> None:
    """Signals end the servers too; the client runs when it wakes, so that no server's latency is the client's."""
    from schedcore.api.time_slice import shorten_time_slice

    end_with_signals()
    shorten_time_slice()

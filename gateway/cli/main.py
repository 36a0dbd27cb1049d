"""`hocket COMMAND`. A command's modules are imported only when it is called: `hocket chat` needs no server."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from gateway import __version__
from gateway.cli.parser import Parser, examples

INTERRUPTED = 130  # what shells expect after Ctrl-C
COMMANDS = {
    "serve": "serve a model over HTTP, OpenAI-compatible",
    "node": "run an engine for the gateways of a fleet, on this machine",
    "fleet": "certificates, a fleet on this machine, its nodes' state, draining one",
    "calibrate": "measure how long this machine takes for a model's steps, and save it as a latency profile",
    "simulate": "try a workload, a policy or a GPU without one: the real scheduler, simulated time",
    "plan": "find the least GPUs that hold online targets at peak, and the offline work they leave room for",
    "batch": "submit files of requests to a server, watch them, read their results",
    "chat": "chat with a served model in the terminal",
    "version": "print the version",
}
EXAMPLES = examples("hocket serve", "hocket chat", "hocket batch submit --prompts prompts.txt --watch --text")


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = Parser(prog="hocket", description="Serves large language models.", epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    module = None
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name == "version":
            command.epilog = examples("hocket version", "hocket --version")
        elif arguments and arguments[0] == name:
            module = importlib.import_module(f"gateway.cli.{name}")
            module.add_arguments(command)
    args = parser.parse_args(arguments)
    if module is None:
        print(__version__)
        return 0
    try:
        status = module.run(args)
    except KeyboardInterrupt:
        return INTERRUPTED
    assert isinstance(status, int)
    return status


if __name__ == "__main__":
    sys.exit(main())

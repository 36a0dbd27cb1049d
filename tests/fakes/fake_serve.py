"""`python -m fakes.fake_serve ARGS`: `hocket serve ARGS` with a fake worker as the engine."""

from __future__ import annotations

import argparse
import sys

from gateway.cli import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="hocket serve")
    serve.add_arguments(parser)
    return serve.run(parser.parse_args(), engine_module="fakes.fake_worker")


if __name__ == "__main__":
    sys.exit(main())

"""What all studies share on the command line, and how they end."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from bench.studies.document import ROOT, Document

Scale = TypeVar("Scale")

MAX_PROCESSES = 2


def run_study(
    description: str, full: Scale, quick: Scale, build: Callable[[Scale, int, int | None], Document],
    arguments: Sequence[str] | None = None,
) -> int:  # fmt: skip
    """build(scale, processes, seeds or None for the scale's own) makes the document. The exit status."""
    args = parse(description, arguments)
    begin = time.monotonic()
    try:
        document = build(quick if args.quick else full, args.processes, args.seeds)
        files = document.save(args.output, time.monotonic() - begin)
        if args.json is not None:
            args.json.write_bytes(document.to_json())
            files.append(args.json)
    except OSError as error:
        print(f"cannot write the results: {error}", file=sys.stderr)
        return 1
    for sentence in document.left_out:
        print(f"left out: {sentence}", file=sys.stderr)
    print("\n\n".join(table.markdown() for table in document.tables))
    print(f"written: {', '.join(str(path) for path in files)}", file=sys.stderr)
    return 0


def parse(description: str, arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer requests, rates and seeds: half a minute")
    parser.add_argument("--seeds", type=positive, metavar="N", help="of arrivals and lengths; each run is repeated")
    parser.add_argument("--processes", type=processes, default=1, metavar="N", help="1 (default) or 2")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables as JSON, too")
    folder = ROOT / "docs" / "results"
    parser.add_argument("--output", type=Path, default=folder, metavar="DIR", help="default: docs/results")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def processes(text: str) -> int:
    number = positive(text)
    if number > MAX_PROCESSES:
        raise argparse.ArgumentTypeError(f"at most {MAX_PROCESSES}")
    return number

"""What `hocket simulate` and `hocket plan` share: options, the values they take, and how numbers are printed."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from schedcore.simulation.model_shape import MODEL_SHAPES
from schedcore.simulation.workloads.traces import Trace, read_trace

Options = dict[str, bool | int | float | str]

POLICY_SYNTAX = "NAME[:FIELD=VALUE,...]"
TRACE_HELP = "CSV, also gzipped: arrival_s, input_tokens, output_tokens, session_id, prefix_hashes"


def add_model_option(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--model",
        choices=MODEL_SHAPES,
        default="llama-3-8b",
        metavar="SHAPE",
        help=f"{', '.join(MODEL_SHAPES)} (default: llama-3-8b)",
    )


def add_target_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--ttft-ms", type=milliseconds, metavar="MS", help="target of online requests: first token")
    group.add_argument("--itl-ms", type=milliseconds, metavar="MS", help="between any two of their tokens")
    group.add_argument("--tpot-ms", type=milliseconds, metavar="MS", help="per token, all of them together")


def targets(args: argparse.Namespace) -> tuple[float | None, float | None, float | None]:
    """TTFT, ITL and TPOT of online requests in milliseconds; None: none."""
    return args.ttft_ms, args.itl_ms, args.tpot_ms


def add_scheduler_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-model-len", type=positive_int, metavar="N", help="context (default: the model's)")
    group.add_argument("--max-num-seqs", type=positive_int, default=256, metavar="N", help="default: 256")
    group.add_argument("--max-num-batched-tokens", type=positive_int, default=2048, metavar="N", help="default: 2048")
    group.add_argument("--block-size", type=positive_int, default=16, metavar="N", help="default: 16")
    group.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    group.add_argument("--enable-chunked-prefill", action=argparse.BooleanOptionalAction, default=True)


def scheduler_options(args: argparse.Namespace) -> Options:
    """Fields of SchedulerConfig. The block size belongs to the engine."""
    names = ("max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching", "enable_chunked_prefill")
    return {name: getattr(args, name) for name in names}


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A policy and what differs for it: `fcfs:enable_chunked_prefill=false,max_num_seqs=64`."""

    label: str
    policy: str
    options: Options

    @classmethod
    def parse(cls, text: str) -> PolicyChoice:
        policy, _, rest = text.partition(":")
        options: Options = {}
        for item in filter(None, rest.split(",")):
            name, equals, value = item.partition("=")
            if not equals:
                raise argparse.ArgumentTypeError(f"{item!r} is no FIELD=VALUE")
            options[name] = _value(value)
        return cls(text, policy, options)


def _value(text: str) -> bool | int | float | str:
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
    return value if isinstance(value, bool | int | float) else text


def fitting_trace(path: Path, context_length: int, command: str) -> Trace:
    """Without requests that the context cannot hold; says how many those are. Raises ValueError, OSError."""
    trace = read_trace(path)
    kept = trace.fitting(context_length)
    if len(kept) < len(trace):
        left_out = f"{len(trace) - len(kept)} of {len(trace)} requests of {trace.name}"
        print(f"hocket {command}: {left_out} exceed the context of {context_length} tokens", file=sys.stderr)
    if not len(kept):
        raise ValueError(f"no request of {trace.name} fits the context")
    return kept


@contextmanager
def progress_bar(label: str) -> Iterator[Callable[[int, int], None]]:
    with new_progress() as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def new_progress() -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)


def write_json(value: object) -> None:
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    sys.stdout.buffer.flush()


def percent(ratio: float | None) -> str:
    return "–" if ratio is None else f"{100 * ratio:.1f} %"


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


# ---- values of options ----


def positive_int(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number")
    return int(text)


def seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in seconds")
    return value


def milliseconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no time in milliseconds above zero")
    return value

"""What a run of serve.py found out, as it is written to JSON and printed as tables."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import psutil

from bench.lib.load.load_report import Distribution, LoadReport, ratio
from bench.lib.server.step_time import StepTime
from bench.lib.table import render

HEADER = (
    "server", "c", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "TPOT p50",
    "core us/step", "core %", "noise %", "errors",
)  # fmt: skip


class Cell(msgspec.Struct, frozen=True):
    """One server at one concurrency, once."""

    server: str
    concurrency: int
    report: LoadReport
    step: StepTime | None  # None: the server does not tell
    noise_ratio: float  # CPU time of everything but server and client, in cores


class ServerFacts(msgspec.Struct, frozen=True):
    name: str
    command: str
    startup_seconds: float  # from the command to the first healthy answer
    idle_rss_bytes: int  # all processes, after start-up
    loaded_rss_bytes: int  # all processes, after the last cell


class ReadLimit(msgspec.Struct, frozen=True):
    """What reading the weights once per token allows where they fit no cache."""

    bytes_per_second: float  # measured in the same run, all cores (machine_limits.py)
    weight_bytes: int  # read per decode step

    @property
    def tokens_per_second(self) -> float:
        """Of one request alone."""
        return ratio(self.bytes_per_second, self.weight_bytes)


class ProductLimit(msgspec.Struct, frozen=True):
    """What the products with the weights allow, attention and all else left out. A step of decodes takes as long as
    reading the weights or as multiplying them, whichever is longer; prompts take their products.
    """

    operations_per_second: float  # measured in the same run, all cores, of what bfloat16 weights are multiplied in
    body_weights: int  # multiplied with each token
    head_weights: int  # with each token that is drawn

    def tokens_per_second(self, concurrency: int, prompt_len: int, output_len: int, read: ReadLimit) -> float:
        """Of output, by so many requests at a time, each with a prompt of its own."""
        prompt = 2 * (prompt_len * self.body_weights + self.head_weights) / self.operations_per_second
        token = 2 * (self.body_weights + self.head_weights) / self.operations_per_second
        step = max(concurrency * token, read.weight_bytes / read.bytes_per_second)
        return ratio(concurrency * output_len, concurrency * prompt + (output_len - 1) * step)


class ModelResult(msgspec.Struct, frozen=True):
    model: str
    prompt_len: int
    output_len: int
    limit: ReadLimit
    servers: list[ServerFacts]
    cells: list[Cell]
    products: ProductLimit | None = None

    def median_cells(self) -> list[Cell]:
        """Of equal cells, the one with the (upper) median throughput; in the order they were first measured."""
        groups: dict[tuple[int, str], list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault((cell.concurrency, cell.server), []).append(cell)
        by_speed = (sorted(group, key=lambda cell: cell.report.output_tokens_per_second) for group in groups.values())
        return [group[len(group) // 2] for group in by_speed]


class Machine(msgspec.Struct, frozen=True):
    cpu: str
    num_cores: int
    memory_bytes: int
    load_average: float  # of the last minute, before the run


class Results(msgspec.Struct, frozen=True):
    date: str
    commit: str
    machine: Machine
    models: list[ModelResult]


def this_machine() -> Machine:
    return Machine(cpu_name(), psutil.cpu_count() or 1, psutil.virtual_memory().total, os.getloadavg()[0])


def cpu_name() -> str:
    """The model name with the vector extensions that matter for speed."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    facts = {key.strip(): value.strip() for key, value in fields.items()}
    flags = set(facts.get("flags", "").split())
    extensions = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if flag in flags]
    return f"{facts.get('model name', platform.processor())} ({', '.join(extensions)})"


def commit() -> str:
    """The checked-out commit, marked if the work tree differs from it."""
    command = ["git", "describe", "--always", "--dirty"]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout.strip()


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def cell_row(cell: Cell) -> list[str]:
    report = cell.report

    def ms(value: Distribution | None, field: str) -> str:
        return "-" if value is None else f"{getattr(value, field):.1f}"

    return [
        cell.server,
        str(cell.concurrency),
        f"{report.output_tokens_per_second:.0f}",
        ms(report.ttft_ms, "p50"),
        ms(report.ttft_ms, "p99"),
        ms(report.itl_ms, "p50"),
        ms(report.itl_ms, "p99"),
        ms(report.tpot_ms, "p50"),
        "-" if cell.step is None else f"{cell.step.core_us_per_step:.1f}",
        "-" if cell.step is None else f"{cell.step.core_ratio:.2%}",
        f"{cell.noise_ratio:.0%}",
        str(report.num_errors),
    ]


def ratio_rows(cells: Sequence[Cell], ours: str, peer: str) -> list[list[str]]:
    """How many times better we are, per concurrency: throughput ours/peer, latency peer/ours."""
    by_key = {(cell.server, cell.concurrency): cell.report for cell in cells}
    rows = []
    for concurrency in dict.fromkeys(cell.concurrency for cell in cells):
        us, them = by_key[ours, concurrency], by_key[peer, concurrency]
        factors = [ratio(us.output_tokens_per_second, them.output_tokens_per_second)]
        for field in ("ttft_ms", "itl_ms"):
            mine, theirs = getattr(us, field), getattr(them, field)
            factors.append(ratio(theirs.p50, mine.p50) if mine and theirs else 0.0)
        rows.append(
            [f"{ours} vs {peer}", str(concurrency), *(f"{factor:.2f}x" if factor else "-" for factor in factors)]
        )
    return rows


def limit_lines(limit: ReadLimit, cells: Sequence[Cell]) -> list[str]:
    """What of the limit one request alone reaches, per server."""
    most = limit.tokens_per_second
    lines = [
        f"limit at c=1: {limit.bytes_per_second / 1e9:.1f} GB/s over {limit.weight_bytes / 1e6:.0f} MB of weights = "
        f"{most:.0f} tokens/s, if no cache holds them"
    ]
    alone = [cell for cell in cells if cell.concurrency == 1]
    return lines + [f"{cell.server}: {ratio(cell.report.output_tokens_per_second, most):.0%} of it" for cell in alone]


def limit_rows(result: ModelResult, products: ProductLimit, cells: Sequence[Cell]) -> list[list[str]]:
    """What of the limit of its concurrency each cell reaches."""
    rows = []
    for cell in cells:
        most = products.tokens_per_second(cell.concurrency, result.prompt_len, result.output_len, result.limit)
        share = ratio(cell.report.output_tokens_per_second, most)
        rows.append([cell.server, str(cell.concurrency), f"{most:.0f}", f"{share:.0%}"])
    return rows


def describe(result: ModelResult) -> str:
    """The tables of one model, Markdown. Latencies in milliseconds."""
    cells = result.median_cells()
    parts = [f"{result.model}: {result.prompt_len} tokens in, {result.output_len} out; latencies in ms"]
    parts += [
        f"{server.name}: started in {server.startup_seconds:.1f} s, resident memory "
        f"{server.idle_rss_bytes / 1e6:.0f} MB idle, {server.loaded_rss_bytes / 1e6:.0f} MB after the load"
        for server in result.servers
    ]
    parts += ["", render(HEADER, [cell_row(cell) for cell in cells])]
    names = [server.name for server in result.servers]
    if len(names) == 2:
        header = ("better by", "c", "tokens/s", "TTFT p50", "ITL p50")
        parts += ["", render(header, ratio_rows(cells, *names))]
    parts += ["", *limit_lines(result.limit, cells)]
    if (products := result.products) is not None:
        speed = f"{products.operations_per_second / 1e9:.0f} GFLOP/s in bfloat16"
        parts += ["", f"limit of products with the weights, at {speed}:", ""]
        parts.append(render(("server", "c", "limit tokens/s", "of it"), limit_rows(result, products, cells)))
    problems = {message for cell in result.cells for message in cell.report.errors}
    parts += [f"error: {message}" for message in sorted(problems)]
    return "\n".join(parts)

"""How many requests per second keep their targets: stock vLLM, and vLLM steered by our core, in turns.

    python -m bench.run.vllm.goodput --vllm-python build/vllm-env/bin/python          # docs/results/vllm_goodput.*
    python -m bench.run.vllm.goodput --vllm-python ... --model demo --dtype float32 --quick --output /tmp

The study of bench/run/goodput.py at fixed rates: Poisson arrivals, 128 tokens in and 128 out, no offline work. All
servers see the same arrivals; each stands still while another is measured. The rate at which the level is held lies
between two that were measured: it is read from the line between them.
"""

from __future__ import annotations

import argparse
import itertools
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from bench.lib import contestants, results
from bench.lib.load.slo import Targets
from bench.lib.table import render_part, wrapped, write_csv
from bench.lib.vllm_contestants import add_vllm_options, vllm_contestants
from bench.run.goodput import WARM_UP_SECONDS, Measurement, Meter

HEADER = ("server", "req/s", "both %", "TTFT %", "ITL %", "goodput/s", "TTFT p50", "p99", "ITL p50", "p99", "refused")
SHOWN = (0, 1, 2, 6, 7, 8, 9, 10)


class Document(msgspec.Struct, frozen=True):
    command: str
    date: str
    commit: str
    machine: results.Machine
    model: str
    targets: Targets
    measurements: list[Measurement]
    rates_held: dict[str, float]


def rate_held(measured: Sequence[tuple[float, float]], level: float) -> float:
    """measured: rates and attained shares. The rate at which the share falls through the level, on lines between
    neighbours; the highest rate if it never does, 0 if it never reaches it."""
    held = 0.0
    last_rate, last_share = 0.0, 1.0
    for rate, share in sorted(measured):
        if share < level:
            return last_rate + (rate - last_rate) * (last_share - level) / (last_share - share) if held else 0.0
        held = last_rate = rate
        last_share = share
    return held


def measure(folder: Path, arguments: argparse.Namespace) -> tuple[list[Measurement], Targets]:
    meter = Meter(folder, arguments)
    with tempfile.TemporaryDirectory(prefix="hocket-vllm-goodput-") as data:
        commands = {c.name: c.command for c in vllm_contestants(arguments, Path(data))}
        with contestants.running(folder, commands) as servers:
            for server in servers:
                meter.measure(server, min(arguments.rates), WARM_UP_SECONDS)
            pairs = itertools.product(arguments.rates, servers)
            return [meter.measure(server, rate, arguments.seconds) for rate, server in pairs], meter.targets


def describe(document: Document, arguments: argparse.Namespace) -> str:
    targets, machine = document.targets, document.machine
    lines = [
        "# Requests within their targets, on stock vLLM and on vLLM steered by our core",
        "",
        f"`{document.command}`, {document.date}, commit {document.commit}, {machine.cpu}, {machine.num_cores} cores, "
        f"model {document.model}, {arguments.dtype}. Poisson arrivals for {arguments.seconds:g} s, "
        f"{arguments.input_len} tokens in, {arguments.output_len} out; targets TTFT {targets.ttft_ms:g} ms, P99 ITL "
        f"{targets.itl_ms:g} ms. Milliseconds. A request that was refused has attained nothing. "
        f"All columns: {arguments.name}.csv.",
        "",
        render_part(HEADER, rows(document), SHOWN),
        "",
    ]
    for name, rate in document.rates_held.items():
        lines.append(f"- {name}: {rate:.2f} requests/s at {arguments.level:.0%}")
    if len(document.rates_held) > 1:
        (first, base), *others = document.rates_held.items()
        lines += [f"- {name} over {first}: {rate / base:.2f} x" for name, rate in others if base > 0]
    return "\n".join(lines) + "\n"


def rows(document: Document) -> list[list[str]]:
    return [_row(m) for m in sorted(document.measurements, key=lambda m: (m.server, m.rate))]


def _row(m: Measurement) -> list[str]:
    shares = [f"{100 * share:.0f}" for share in (m.attainment.both, m.attainment.ttft, m.attainment.itl)]
    latencies = [
        "-" if value is None else f"{getattr(value, field):.0f}"
        for value in (m.report.ttft_ms, m.report.itl_ms)
        for field in ("p50", "p99")
    ]
    return [m.server, f"{m.rate:g}", *shares, f"{m.attainment.goodput:.2f}", *latencies, str(m.report.num_errors)]


def plot(document: Document, arguments: argparse.Namespace, target: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context({"font.size": 9}):
        figure, axis = plt.subplots(figsize=(5.2, 3.2))
        for name in document.rates_held:
            own = sorted((m.rate, m.attainment.both) for m in document.measurements if m.server == name)
            axis.plot([rate for rate, _ in own], [100 * share for _, share in own], marker="o", label=name)
        axis.axhline(100 * arguments.level, linestyle=":", color="grey")
        axis.set_ylim(0, 103)
        axis.set_xlabel("requests per second")
        axis.set_ylabel("within both targets (%)")
        axis.set_title(f"{document.model}, {document.date[:10]}, {document.commit}")
        axis.legend()
        figure.tight_layout()
        figure.savefig(target, dpi=120)
        plt.close(figure)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_vllm_options(parser, ["stock", "vllm"])
    parser.add_argument("--rates", type=float, nargs="+", default=[2, 3, 4, 5, 6.5, 8], help="requests per second")
    parser.add_argument("--seconds", type=float, default=25.0, help="of arrivals per measurement")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--ttft-ms", type=float, default=1000.0)
    parser.add_argument("--itl-ms", type=float, default=150.0)
    parser.add_argument("--level", type=float, default=0.9)
    parser.add_argument("--cv", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="short runs, to see whether everything works")
    arguments = parser.parse_args()
    arguments.name, arguments.pace = arguments.name or "vllm_goodput", 0.0
    if arguments.quick:
        arguments.seconds, arguments.rates, arguments.output_len = 4.0, [1, 2], 16
    return arguments


def main() -> None:
    contestants.prepare_process()
    arguments = parse_arguments()
    contestants.RESULTS.mkdir(parents=True, exist_ok=True)
    date, machine, folder = results.now(), results.this_machine(), contestants.model_folder(arguments.model)
    found, targets = measure(folder, arguments)
    held = {
        name: rate_held([(m.rate, m.attainment.both) for m in found if m.server == name], arguments.level)
        for name in dict.fromkeys(m.server for m in found)
    }
    command = shlex.join(["python", "-m", "bench.run.vllm.goodput", *sys.argv[1:]])
    document = Document(command, date, results.commit(), machine, folder.name, targets, found, held)
    file = contestants.RESULTS / f"{arguments.name}-{date.replace(':', '')}.json"
    file.write_bytes(msgspec.json.encode(document))
    page = describe(document, arguments)
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / f"{arguments.name}.md").write_text(wrapped(page))
    write_csv(arguments.output / f"{arguments.name}.csv", HEADER, rows(document))
    plot(document, arguments, arguments.output / f"{arguments.name}.png")
    print(f"\n{page}")


if __name__ == "__main__":
    main()

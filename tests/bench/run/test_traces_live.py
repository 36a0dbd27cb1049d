"""bench/run/recorded/traces.py: what arrives, who was overtaken, what the page says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench.lib.load.load_report import summarize
from bench.lib.load.request_trace import RequestTrace
from bench.lib.load.slo import Targets, attainment
from bench.lib.recorded_traces import SOURCES, at_rate, scaled, window
from bench.lib.results import Machine
from bench.run.recorded.traces import Document, Measurement, describe, num_overtaken, parse_arguments
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import make_workload

TARGETS = Targets(300, 20)


def served(arrival: float, first: float, num_tokens: int = 3) -> RequestTrace:
    times = [first + 0.01 * i for i in range(num_tokens)]
    return RequestTrace(arrival, 8, num_tokens, times, times[-1])


def test_lengths_and_shared_blocks_shrink_together(tmp_path: Path) -> None:
    file = tmp_path / "loogle_testdata.csv"
    file.write_text("input_tokens,output_tokens,prefix_hashes\n1000,9,1 2 3\n600,1,1 2\n")
    source = next(s for s in SOURCES if s.name == "loogle_testdata").scaled(4, 0.1)
    trace = scaled(read_trace(file), 4)
    assert (trace.input_tokens, trace.output_tokens, source.hash_block_size) == ([250, 150], [3, 1], 64)
    prompts = at_rate(source, window(trace, source, 2, 0), float("inf"), 0).prompts
    a, b = (prompts.prompt_token_ids(i) for i in range(2))
    assert (a[:128] == b[:128]).all()
    assert (a[128:150] != b[128:150]).any()


def test_pauses_are_a_share_of_the_traces() -> None:
    chats = next(s for s in SOURCES if s.pause_s == 30.0)
    assert chats.scaled(4, 0.1).pause_s == pytest.approx(3.0)
    assert chats.scaled(4, 0.1).hash_block_size is None


def test_who_is_behind_a_later_equal_is_overtaken() -> None:
    workload = make_workload(np.arange(4.0), Prompts.unrelated(np.array([50, 50, 60, 50])), [3] * 4)
    in_order = [served(0, 1.0), served(1, 2.0), served(2, 9.0), served(3, 3.5)]
    assert num_overtaken(workload, in_order) == 0
    assert num_overtaken(workload, [served(0, 2.5), *in_order[1:]]) == 1
    assert num_overtaken(workload, [served(0, 2.003), *in_order[1:]]) == 0  # of one step, maybe
    at_once = [served(1, 2.5), served(1.0005, 2.0), *in_order[2:]]
    assert num_overtaken(workload, at_once) == 0  # which of them came first?


def test_the_page_compares_by_seed(tmp_path: Path) -> None:
    traces = {"hocket": served(0, 0.1), "fcfs": served(0, 0.1), "priority": served(0, 0.5)}
    found = [
        Measurement(
            "humaneval", 0.8, seed, policy, 4.0, TARGETS, attainment([t], TARGETS), summarize([t], 0.0), 0, 0, 0.01
        )
        for seed in range(2)
        for policy, t in traces.items()
    ]
    machine = Machine("a processor", 2, 1 << 30, 0.0)
    document = Document("python", "2026-01-01", "abc", machine, "tiny", 4, {"humaneval": 1}, found)
    page = describe(document, parse_arguments(["--data", str(tmp_path)]))
    assert "| humaneval | 0.8 | +0.0 (+0.0, +0.0) | +100.0 (+100.0, +100.0) |" in " ".join(page.split("  ")).replace(
        "  ", " "
    )
    assert "| priority |" in page
    assert "20.0 to 20.0" in page

"""What arrives as somebody recorded it: the traces by name, and how each one's requests come at a rate."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.traces import Trace
from schedcore.simulation.workloads.workload import Workload

PRIORITY_SHARE = 0.2  # of requests, drawn: `service_tier: priority`


@dataclass(frozen=True, slots=True)
class Source:
    """How a file's requests arrive."""

    name: str
    arrivals: str  # recorded, sessions, poisson
    hash_block_size: int | None = None
    jitter_s: float = 0.0
    pause_s: float = 0.0

    def scaled(self, divisor: int, pauses: float) -> Source:
        """For traces of which `scaled` made the lengths smaller, and with pauses of that share."""
        size = self.hash_block_size
        return replace(self, hash_block_size=size and size // divisor, pause_s=self.pause_s * pauses)


SOURCES = (
    Source("azure23_conv", "recorded"),
    Source("azure23_code", "recorded"),
    Source("mooncake_conversation", "recorded", 512, jitter_s=3.0),
    Source("sharegpt_llama3_300", "recorded", 16),
    Source("servegen_resampled_m-large_24h", "recorded"),
    Source("agent_miniswe", "sessions", 64, pause_s=1.1),
    Source("sharegpt8k_multiturn_etalon", "sessions", pause_s=30.0),
    Source("lengths_sharegpt_nanoflow", "poisson"),
    Source("lengths_arxiv_summ_vidur", "poisson"),
    Source("humaneval", "poisson"),
    Source("leval", "poisson", 256),
    Source("loogle_testdata", "poisson", 256),
)


def rows_of(trace: Trace, rows: npt.NDArray[np.int64]) -> Trace:
    return replace(
        trace,
        arrival_s=trace.arrival_s[rows],
        sessions=[trace.sessions[row] for row in rows],
        input_tokens=[trace.input_tokens[row] for row in rows],
        output_tokens=[max(1, trace.output_tokens[row]) for row in rows],
        prefix_hashes=[trace.prefix_hashes[row] for row in rows],
    )


def scaled(trace: Trace, divisor: int) -> Trace:
    """Prompts and answers of a part of their lengths, rounded up. REQUIRES: blocks with ids are multiples of it."""
    return replace(
        trace,
        input_tokens=[-(-n // divisor) for n in trace.input_tokens],
        output_tokens=[-(-n // divisor) for n in trace.output_tokens],
    )


def window(trace: Trace, source: Source, num_requests: int, seed: int) -> Trace:
    """Consecutive rows, beginning where the seed says; of prompts without an order, rows drawn at random."""
    rng = np.random.default_rng([seed, 7])
    if source.arrivals == "poisson":
        rows = rng.permutation(len(trace))
        return replace(rows_of(trace, np.resize(rows, num_requests)), sessions=[""] * num_requests)
    first = int(rng.integers(0, max(1, len(trace) - num_requests)))
    return rows_of(trace, np.arange(first, min(len(trace), first + num_requests)))


def at_rate(source: Source, rows: Trace, rate: float, seed: int) -> Workload:
    """Requests per second over the whole run; infinite: all at once, each as if it followed nobody."""
    size = source.hash_block_size
    if rate == float("inf"):
        return rows.batch_workload(size)
    if source.arrivals == "recorded":
        workload = rows.workload(jitter_s=source.jitter_s, seed=seed, hash_block_size=size)
        times = workload.arrival_s - workload.arrival_s.min()
        return replace(workload, arrival_s=times * (len(rows) / rate / times.max()))
    num_sessions = len(set(rows.sessions)) if source.arrivals == "sessions" else len(rows)
    process = ArrivalProcess(rate * num_sessions / len(rows))
    return rows.paced_workload(process, think_s=source.pause_s, seed=seed, hash_block_size=size)


def with_priorities(workload: Workload, seed: int) -> Workload:
    has_priority = np.random.default_rng([seed, 8]).random(len(workload)) < PRIORITY_SHARE
    return replace(workload, priority=np.where(has_priority, -1, 0))

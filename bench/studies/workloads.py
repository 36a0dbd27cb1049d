"""What arrives in the studies: workloads from the cuts in data/."""

from __future__ import annotations

import csv
import gzip
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from schedcore.api.types import RequestClass
from schedcore.simulation.workloads.arrivals import ArrivalProcess
from schedcore.simulation.workloads.token_ids import Prompts, StreamKind, stream_id
from schedcore.simulation.workloads.traces import read_trace
from schedcore.simulation.workloads.workload import Workload, make_workload

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]

DATA = Path(__file__).resolve().parent / "data"


@dataclass(frozen=True, slots=True)
class Lengths:
    """Prompts and answers to draw from, in tokens."""

    name: str
    inputs: Int32
    outputs: Int32

    def cut(self, max_total: int) -> Lengths:
        """Prompts lose their beginning until prompt and answer fit; answers above half of that are left out."""
        keep = self.outputs <= max_total // 2
        inputs = np.minimum(self.inputs[keep], max_total - self.outputs[keep])
        return Lengths(self.name, inputs, self.outputs[keep])

    def fitting(self, max_total: int) -> Lengths:
        keep = self.inputs + self.outputs <= max_total
        return Lengths(self.name, self.inputs[keep], self.outputs[keep])

    def with_mean_output(self, num_tokens: float) -> Lengths:
        """Answers stretched by one factor."""
        stretched = np.maximum(1, np.round(self.outputs * (num_tokens / self.outputs.mean())))
        return Lengths(self.name, self.inputs, stretched.astype(np.int32))

    @property
    def means(self) -> str:
        return f"{self.inputs.mean():.0f} + {self.outputs.mean():.0f}"

    def workload(self, arrival_s: Float64, seed: int) -> Workload:
        """Independent requests that share no prefix, at these times."""
        rows = np.random.default_rng([seed, 2]).integers(0, self.inputs.size, arrival_s.size)
        prompts = Prompts.unrelated(self.inputs[rows])
        return make_workload(arrival_s, prompts, self.outputs[rows], source=f"lengths of {self.name}")

    def arriving(self, rate: float, num_requests: int, seed: int, cv: float = 1.0) -> Workload:
        """With independent gamma distributed gaps; cv 1: a Poisson process."""
        return self.workload(ArrivalProcess(rate, cv).times(num_requests, seed), seed)


@cache
def lengths(name: str) -> Lengths:
    """Of data/NAME.csv.gz. Raises OSError, TraceError."""
    trace = read_trace(DATA / f"{name}.csv.gz")
    return Lengths(name, np.array(trace.input_tokens, np.int32), np.array(trace.output_tokens, np.int32))


def column(name: str, field: str) -> Float64:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
        return np.array([float(row[field]) for row in csv.DictReader(file)])


@cache
def azure_arrivals() -> Float64:
    """Seconds from the first of them."""
    times = column("azure_arrivals", "arrival_s")
    return np.asarray(times - times[0])


def azure_times(rate: float, duration_s: float, seed: int) -> Float64:
    """A stretch of the recorded arrivals, scaled in time to last so long at that many requests per second.

    The seed chooses where the stretch begins; what runs past the end of the record goes on at its beginning.
    """
    recorded = azure_arrivals()
    gaps = np.diff(recorded, append=recorded[-1] + recorded[-1] / recorded.size)
    first = int(np.random.default_rng([seed, 3]).integers(0, gaps.size)) if seed else 0
    times = np.cumsum(np.resize(np.roll(gaps, -first), max(1, round(rate * duration_s))))
    return np.asarray(times * (duration_s / times[-1]))


@dataclass(frozen=True, slots=True)
class Documents:
    """Questions by document: how much all prompts about it share, and the lengths of each prompt and answer."""

    shared_tokens: list[int]
    questions: list[list[tuple[int, int]]]  # input and output tokens

    def pool(self, num_requests: int, seed: int) -> Workload:
        """A bulk job: documents drawn with replacement, each of them another text, questions in random order."""
        rng = np.random.default_rng([seed, 4])
        requests: list[tuple[int, int, int, int]] = []  # document, shared, input and output tokens
        document = 0
        while len(requests) < num_requests:
            kind = int(rng.integers(0, len(self.questions)))
            requests += [(document, self.shared_tokens[kind], *pair) for pair in self.questions[kind]]
            document += 1
        chosen = [requests[i] for i in rng.permutation(len(requests))]
        runs = [
            [(stream_id(StreamKind.SESSION, document), min(shared, num_inputs - 1)),
             (stream_id(StreamKind.REQUEST, row), num_inputs)]
            for row, (document, shared, num_inputs, _) in enumerate(chosen)
        ]  # fmt: skip
        answers = [stream_id(StreamKind.REQUEST, row) for row in range(len(chosen))]
        prompts = Prompts.from_runs(runs, answers)
        outputs = [num_outputs for *_, num_outputs in chosen]
        return as_offline(make_workload(np.zeros(len(chosen)), prompts, outputs, source="LooGLE-like documents"))


@cache
def documents() -> Documents:
    with gzip.open(DATA / "loogle_questions.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    shared: dict[str, int] = {}
    questions: dict[str, list[tuple[int, int]]] = {}
    for row in rows:
        shared[row["document"]] = int(row["shared_tokens"])
        pair = int(row["input_tokens"]), int(row["output_tokens"])
        questions.setdefault(row["document"], []).append(pair)
    return Documents(list(shared.values()), list(questions.values()))


def conversations(session_rate: float, duration_s: float, max_total: int, seed: int) -> Workload:
    """Conversations that begin as a Poisson process until `duration_s`, in an order and with pauses of their own.

    A turn arrives after the end of the answer before it and a pause drawn from the recorded gaps between turns (which
    include the answer's own time).
    """
    trace = read_trace(DATA / "sharegpt_turns.csv.gz").fitting(max_total)
    numbers = np.array([int(session) for session in trace.sessions])
    rng = np.random.default_rng([seed, 5])
    num_sessions = ArrivalProcess(session_rate).num_in(duration_s)
    starts = np.flatnonzero(np.diff(numbers, prepend=-1))
    ends = np.append(starts[1:], numbers.size)
    rows = [np.arange(starts[s], ends[s]) for s in rng.integers(0, starts.size, num_sessions)]
    order = np.concatenate(rows)
    copies = replace(
        trace,
        arrival_s=trace.arrival_s[order],
        sessions=[str(i) for i, of_session in enumerate(rows) for _ in of_session],
        input_tokens=[trace.input_tokens[row] for row in order],
        output_tokens=[trace.output_tokens[row] for row in order],
        prefix_hashes=[[] for _ in order],
    )
    workload = copies.paced_workload(ArrivalProcess(session_rate), seed=seed)
    is_later = workload.follows >= 0
    pauses = rng.choice(column("turn_gaps", "gap_s"), len(workload))
    return replace(workload, arrival_s=np.where(is_later, pauses, workload.arrival_s), source="ShareGPT conversations")


def as_offline(workload: Workload) -> Workload:
    return workload.with_class(RequestClass.OFFLINE).with_priority(1)

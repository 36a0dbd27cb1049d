"""The busiest stretch of a workload: the one that offers most work, which need not be the one with most requests."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from schedcore._core import algorithms
from schedcore.simulation.cost_model import CostModel
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.workloads.workload import Workload

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

# A busy engine's step, to which a request adds its share: the fixed costs of a step are there anyway.
_BUSY = {
    "num_chunks": 1.0,
    "chunk_tokens": 512.0,
    "chunk_pairs": 512.0**2,
    "chunk_squares": 512.0**2,
    "chunk_context": 0.0,
    "num_decodes": 64.0,
    "decode_context": 64_000.0,
    "max_context": 1000.0,
}


def new_prompt_tokens(workload: Workload) -> Int64:
    """Of each prompt, in order of arrival: tokens that no earlier prompt or answer begins with.

    They are what is left to compute if the prefix cache forgets nothing. Every prompt has at least one.
    """
    prompts = workload.prompts
    known: dict[int, int] = {}  # stream -> how far it has been seen
    new = np.empty(len(workload), np.int64)
    for request in np.argsort(workload.arrival_s, kind="stable").tolist():
        first, last = prompts.offsets[request], prompts.offsets[request + 1]
        runs = list(zip(prompts.streams[first:last].tolist(), prompts.ends[first:last].tolist(), strict=True))
        num_tokens, num_known = runs[-1][1], 0
        for stream, end in runs:
            seen = known.get(stream, 0)
            num_known = max(num_known, min(seen, end))
            if seen < end:
                break
        for stream, end in runs:
            known[stream] = max(known.get(stream, 0), end)
        answer = int(prompts.continuations[request])
        known[answer] = max(known.get(answer, 0), num_tokens + int(workload.output_tokens[request]))
        new[request] = max(num_tokens - num_known, 1)
    return new


def work_of(workload: Workload, engine: SimulatedEngine) -> Float64:
    has_cache = bool(engine.options.get("enable_prefix_caching", True))
    return offered_work_s(workload, engine.cost, has_prefix_cache=has_cache)


def offered_work_s(workload: Workload, cost: CostModel, *, has_prefix_cache: bool = True) -> Float64:
    """Seconds that each request adds to the steps of a busy engine: its new prompt tokens and all of its decodes."""
    prompts = workload.input_tokens.astype(np.int64)
    new = new_prompt_tokens(workload) if has_prefix_cache else prompts
    model = cost.to_core()
    busy_s = model.predict(algorithms.BatchFeatures(**_BUSY))
    work = np.empty(len(workload))
    for request, (prompt, chunk, num_outputs) in enumerate(zip(prompts, new, workload.output_tokens, strict=True)):
        prefill = _prefill_features(prompt - chunk, chunk)
        decode = {"num_decodes": 1.0, "decode_context": prompt + num_outputs / 2}
        prefill_s, decode_s = _predict(model, prefill) - busy_s, _predict(model, decode) - busy_s
        work[request] = prefill_s + (num_outputs - 1) * decode_s
    return work


def _prefill_features(context: int, chunk: int) -> dict[str, float]:
    return {
        "num_chunks": 1.0,
        "chunk_tokens": float(chunk),
        "chunk_pairs": float((context + chunk) ** 2 - context**2),
        "chunk_squares": float(chunk**2),
        "chunk_context": float(context),
    }


def _predict(model: algorithms.LatencyModel, added: Mapping[str, float]) -> float:
    features = {**_BUSY, **{name: _BUSY[name] + float(value) for name, value in added.items()}}
    return model.predict(algorithms.BatchFeatures(**features))


def peak_start_s(arrival_s: Float64, work_s: Float64, window_s: float) -> float:
    """The arrival at which the heaviest window [start, start + window_s) begins; the earliest of equals.

    Raises ValueError if nothing arrives.
    """
    if arrival_s.size == 0:
        raise ValueError("the workload has no requests")
    order = np.argsort(arrival_s, kind="stable")
    times = arrival_s[order]
    until = np.concatenate([[0.0], np.cumsum(work_s[order])])
    ends = np.searchsorted(times, times + window_s, side="left")
    return float(times[np.argmax(until[ends] - until[: times.size])])

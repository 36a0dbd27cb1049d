"""The core's algorithms one by one: microseconds per decision, with the papers' numbers beside.

    python -m bench.run.parts.algorithms [--calls 2000] [--json]
    python -m bench.run.parts.algorithms --oracle [--cases 1000]     b/r against SLSQP from 20 starts, minutes

Every call goes through the Python binding and gets one of 16 different inputs in turn, as a branch predictor deserves;
what an empty call costs is the first line.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np

from bench.lib.oracle_partial_cache import best_by_slsqp, random_case
from bench.lib.table import render
from schedcore._core import algorithms

APT_SERVE_TABLE_6_MS = {50: 0.3, 100: 0.5, 200: 1.0, 400: 2.1, 800: 4.8, 1600: 10.8}
ELLM_SLSQP_MS = 4.58  # section 6.7, Llama2-13B on ShareGPT, batch of at most 512
NUM_INPUTS = 16

Call = Callable[[int], object]  # of input 0..NUM_INPUTS - 1


@dataclass(frozen=True, slots=True)
class Timing:
    name: str
    p50_us: float
    p99_us: float
    paper_us: float | None = None


def measure(name: str, call: Call, num_calls: int, paper_ms: float | None = None) -> Timing:
    laps = np.empty(num_calls)
    for i in range(min(num_calls, 100)):
        call(i % NUM_INPUTS)
    for i in range(num_calls):
        begin = time.perf_counter_ns()
        call(i % NUM_INPUTS)
        laps[i] = time.perf_counter_ns() - begin
    p50, p99 = (np.percentile(laps, (50, 99)) / 1000).tolist()
    return Timing(name, p50, p99, None if paper_ms is None else paper_ms * 1000)


def knapsack_call(num_candidates: int, hidden_ratio: float) -> Call:
    """Half of the candidates resident, a third late, memory for four tenths of what they want."""
    rng = np.random.default_rng(0)
    knapsack = algorithms.Knapsack(compact_seconds_per_unit=3e-8)
    inputs = []
    for _ in range(NUM_INPUTS):
        units = 20 * rng.integers(2, 80, num_candidates)
        hidden = [algorithms.knapsack_compact_units(int(m), hidden_ratio, 20) for m in units]
        flags = rng.choice([0, 0, algorithms.PAST_TARGET], num_candidates)
        flags = flags | rng.choice([0, algorithms.RESIDENT_KV], num_candidates)
        pending, keep = rng.exponential(1.0, num_candidates), rng.uniform(0, 1, num_candidates)
        arrays = pending.astype(np.float32), units.astype(np.int32), np.array(hidden, np.int32), flags.astype(np.uint8)
        inputs.append((*arrays, keep.astype(np.float32), int(0.4 * units.sum())))
    return lambda i: knapsack.solve(*inputs[i])


COEFFICIENTS = {
    "step_base": 0.006,
    "prefill_floor": 0.004,
    "prefill_pair": 2.3e-9,
    "prefill_token": 6.4e-5,
    "decode_base": 0.0025,
    "decode_seq": 4.7e-5,
    "decode_context": 3.3e-7,
    "overlap": 0.1,
}


def model() -> algorithms.LatencyModel:
    return algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(**COEFFICIENTS))


def prediction_calls() -> Iterator[tuple[str, Call]]:
    rng = np.random.default_rng(1)
    latency, batch = model(), algorithms.LatencyBatch(32_768)
    for context in rng.integers(16, 32_000, 256):
        batch.add_decode(int(context))
    batch.add_chunk(512, 1024)
    features, contexts = batch.features, rng.integers(16, 32_768, NUM_INPUTS).tolist()
    refiner = algorithms.LatencyRefiner(latency)

    def change_one(i: int) -> None:
        batch.add_decode(contexts[i])
        latency.predict(batch.features)
        batch.remove_decode(contexts[i])

    yield "predict", lambda i: latency.predict(features)
    yield "add a decode, predict, remove it (4 calls)", change_one
    yield "refine by one step", lambda i: refiner.observe(features, 0.09)


def partial_cache_call(num_requests: int, memory_share: float) -> Call:
    h, layers = 5120, 40
    costs = algorithms.StepCosts(
        "roofline",
        flops_per_token=24.0 * h**2 * layers,
        flops_per_pair=4.0 * h * layers,
        flops_per_logit=2.0 * h * 32_000,
        flops_per_second=156e12,
        weight_bytes=24.0 * h**2 * layers,
        head_bytes=2.0 * h * 32_000,
        kv_bytes_per_token=4.0 * layers * h,
        workspace_bytes_per_token=40.0 * h,
        bytes_per_second=1e12,
    )
    rng = np.random.default_rng(2)
    lengths = [rng.integers(100, 3000, num_requests, dtype=np.int32) for _ in range(NUM_INPUTS)]
    memory = memory_share * 1550 * num_requests * 4.0 * layers * h
    return lambda i: algorithms.solve_partial_cache(costs, lengths[i], memory, 1e9)


def forecast_call() -> Call:
    forecast, clock = algorithms.MemoryForecast(), iter(np.arange(0.0, 1e6, 0.03).tolist())
    return lambda i: forecast.update(next(clock), 1000 * i)


def pool_calls() -> Iterator[tuple[str, Call]]:
    """2,000 questions about 100 documents of 1,400 blocks, as LooGLE has them; one document is cached."""
    rng = np.random.default_rng(3)
    pool, paths = algorithms.OfflinePool(), []
    documents = [rng.integers(0, 2**63, 1400, dtype=np.uint64) for _ in range(100)]
    for request_id in range(2000):
        question = rng.integers(0, 2**63, 3, dtype=np.uint64)
        paths.append(np.concatenate([documents[request_id % 100], question]))
        pool.insert(request_id, 23_000, paths[-1])
    pool.note_cached(documents[0], 1400)
    bucket = pool.bucket_of(23_000)

    def take_and_put_back(i: int) -> None:
        pool.take(i)
        pool.insert(i, 23_000, paths[i])

    yield "next", lambda i: pool.next(bucket, lambda id_, path: 1400 if id_ % 100 == 0 else 0)
    yield "take, and insert again (1,403 blocks)", take_and_put_back
    yield "reference counts of 1,403 blocks", lambda i: pool.reference_counts(paths[i])


def plan_search_call(num_candidates: int, *, is_steady: bool) -> Call:
    """Residents and eight prompts, starting from the last search's own answer; not steady: a tenth of it is undone."""
    rng = np.random.default_rng(4)
    searcher, latency, inputs = algorithms.PlanSearch(decode_value=20.0), model(), []
    batch = algorithms.LatencyBatch(32_768)
    budgets = algorithms.PlanBudgets(
        max_seconds=0.12, max_tokens=2048, max_requests=4096, free_units=500, valuable_units=5000, tokens_per_unit=8.0
    )
    for _ in range(NUM_INPUTS):
        shapes = [{"context": int(c)} for c in rng.integers(100, 1000, num_candidates)]
        shapes += [{"context": 0, "remaining": 800 + 100 * i, "is_resident": False} for i in range(8)]
        last = np.zeros(len(shapes), int)
        for _ in range(5):
            last[(rng.random(len(last)) < 0.1) & (not is_steady)] = 0
            candidates = [
                algorithms.PlanCandidate(**shape, last_tokens=int(tokens))
                for shape, tokens in zip(shapes, last, strict=True)
            ]
            batch.clear()
            last = searcher.search(latency, candidates, budgets, 0.0, batch)["tokens"].copy()
        inputs.append(candidates)

    def search(i: int) -> None:
        batch.clear()
        searcher.search(latency, inputs[i], budgets, 0.0, batch)

    return search


def all_timings(num_calls: int) -> Iterator[Timing]:
    forecast = algorithms.MemoryForecast()
    yield measure("empty call", lambda i: forecast.mean(), num_calls)
    for hidden_ratio, name in ((0.5, "KV and hidden"), (2.0, "KV only")):
        for n, paper_ms in APT_SERVE_TABLE_6_MS.items():
            yield measure(f"knapsack, {name}, {n} candidates", knapsack_call(n, hidden_ratio), num_calls, paper_ms)
    for name, call in prediction_calls():
        yield measure(f"latency: {name}", call, num_calls)
    for share, name in ((0.5, "memory binds"), (2.0, "memory for all")):
        yield measure(f"b/r, 512 requests, {name}", partial_cache_call(512, share), num_calls, ELLM_SLSQP_MS)
    times = {"compute_seconds": 1e-4, "recompute_seconds": 3e-4, "load_kv_seconds": 2e-4, "load_hidden_seconds": 1e-4}
    yield measure("overlap, 80 layers", lambda i: algorithms.plan_overlap(80, project_seconds=1e-5, **times), num_calls)
    yield measure("memory forecast: update", forecast_call(), num_calls)
    for name, call in pool_calls():
        yield measure(f"offline pool: {name}", call, num_calls)
    for n in (64, 256, 1600):
        yield measure(f"plan search, {n} residents, steady", plan_search_call(n, is_steady=True), num_calls)
        yield measure(f"plan search, {n} residents, a tenth undone", plan_search_call(n, is_steady=False), num_calls)


def table(timings: list[Timing]) -> str:
    rows = []
    for t in timings:
        paper = [f"{t.paper_us:.0f}", f"{t.paper_us / t.p50_us:.0f}x"] if t.paper_us else ["", ""]
        rows.append([t.name, f"{t.p50_us:.1f}", f"{t.p99_us:.1f}", *paper])
    return render(["microseconds", "p50", "p99", "paper", "ratio"], rows)


def compare_with_slsqp(num_cases: int) -> str:
    rng = np.random.default_rng(0)
    ratios = []
    for _ in range(num_cases):
        case = random_case(rng)
        batch_size, _, seconds = case.solve()
        ours, theirs = batch_size / seconds if batch_size else 0.0, best_by_slsqp(case)
        if theirs > 0:
            ratios.append(ours / theirs)
        elif ours > 0:
            ratios.append(np.inf)
    worst, better = min(ratios), sum(ratio > 1 + 1e-6 for ratio in ratios)
    verdict = f"worst ratio {worst:.9f}, better in {better} of {len(ratios)} feasible cases"
    return f"b/r over SLSQP from 20 starts, {num_cases} cases: {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--oracle", action="store_true")
    parser.add_argument("--cases", type=int, default=1000)
    args = parser.parse_args()
    if args.oracle:
        print(compare_with_slsqp(args.cases))
        return
    timings = list(all_timings(args.calls))
    print(json.dumps([asdict(t) for t in timings]) if args.json else table(timings))


if __name__ == "__main__":
    main()

"""The loop of cpp/core/simulation/simulation_loop.cpp in plain Python over the same Scheduler: its oracle."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np

from schedcore._core import AddStatus, BatchPlan, Estimates, Scheduler, SchedulerConfig, algorithms
from schedcore.api.types import FinishReason
from schedcore.simulation.workloads.token_ids import stream_tokens
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload


@dataclass
class TwinResult:
    arrival_s: dict[int, float] = field(default_factory=dict)
    scheduled_s: dict[int, float] = field(default_factory=dict)
    token_times_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    num_cached_tokens: dict[int, int] = field(default_factory=dict)
    num_preemptions: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    refused: dict[int, AddStatus] = field(default_factory=dict)
    finished: list[int] = field(default_factory=list)
    tokens: list[tuple[int, float]] = field(default_factory=list)
    num_steps: int = 0


def plan_features(plan: BatchPlan) -> algorithms.BatchFeatures:
    batch = algorithms.LatencyBatch(1 << 20)
    for n, length in zip(np.diff(plan.query_start).tolist(), plan.seq_lens.tolist(), strict=True):
        if n == 1:
            batch.add_decode(length)
        else:
            batch.add_chunk(length - n, n)
    return batch.features


def run_twin(workload: Workload, config: SchedulerConfig, estimates: Estimates) -> TwinResult:
    scheduler, latency = Scheduler(config, estimates), estimates.latency
    result = TwinResult()
    follower = {int(leader): i for i, leader in enumerate(workload.follows) if leader != NO_REQUEST}
    roots = np.flatnonzero(workload.follows == NO_REQUEST)
    arrivals = [(float(workload.arrival_s[i]), int(i)) for i in roots]
    heapq.heapify(arrivals)
    now = 0.0

    def end(request: int) -> None:
        if request in follower:
            heapq.heappush(arrivals, (now + float(workload.arrival_s[follower[request]]), follower[request]))

    while arrivals or scheduler.has_work():
        if not scheduler.has_work():
            now = max(now, arrivals[0][0])
        while arrivals and arrivals[0][0] <= now:
            time, request = heapq.heappop(arrivals)
            result.arrival_s[request] = time
            status = add(scheduler, workload, request, time)
            if status is not AddStatus.OK:
                result.refused[request] = status
                end(request)
        plan = scheduler.schedule(now)
        if not plan:
            continue
        result.num_steps += 1
        ids = plan.request_ids.tolist()
        for request in ids:
            result.scheduled_s.setdefault(request, now)
        for request in plan.preempted_ids.tolist():
            result.num_preemptions[request] += 1
        sampled = [next_token(workload, ids[seq], int(plan.seq_lens[seq])) for seq in plan.sample_seqs]
        now += latency.predict(plan_features(plan))
        output = scheduler.commit(np.array(sampled, np.int32), now)
        scheduler.check_invariants()
        for i, request in enumerate(output.request_ids.tolist()):
            result.token_times_s[request].append(now)
            result.tokens.append((request, now))
            result.num_cached_tokens[request] = int(output.num_cached_tokens[i])
            if output.finish_reasons[i] != FinishReason.NONE:
                result.finished.append(request)
                end(request)
    return result


def add(scheduler: Scheduler, workload: Workload, request: int, time: float) -> AddStatus:
    return scheduler.add_request(
        request,
        workload.prompts.prompt_token_ids(request),
        max_tokens=int(workload.output_tokens[request]),
        request_class=int(workload.request_class[request]),
        priority=int(workload.priority[request]),
        arrival_time=time,
        ttft_target=float(workload.ttft_target_ms[request]) / 1000,
        itl_target=float(workload.itl_target_ms[request]) / 1000,
        tpot_target=float(workload.tpot_target_ms[request]) / 1000,
    )


def next_token(workload: Workload, request: int, position: int) -> int:
    return int(stream_tokens(int(workload.prompts.continuations[request]), position, position + 1)[0])

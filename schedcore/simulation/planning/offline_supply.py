"""Offline work that never runs dry, in bounded memory: a pool of fixed size, refilled from a trace over and over.

The pool's first requests wait from the start. Each later one arrives when a request has ended: it follows the one that
is `pool_size` before it. So the scheduler sees a full pool at all times and never more. The size and the length of the
trace share no divisor: what follows a request is another row of the trace, then yet another, until all have had their
turn. So a policy that likes some rows best does not see the pool fill up with them.

Requests end in another order than that in which they arrived, and what follows them arrives in that order. Policies
that take offline requests by arrival thus see a trace that is slowly shuffled: neighbours share less and less. Under
`priority` the trace's order holds, and policies that look for shared prefixes find them in the pool.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
import numpy.typing as npt

from schedcore._core import SimulatedOutcome
from schedcore.api.types import RequestClass
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.simulator import Progress, SimulationResult, simulate
from schedcore.simulation.workloads.token_ids import PART_MASK, PART_SHIFT, Prompts
from schedcore.simulation.workloads.workload import NO_REQUEST, Workload

Float64 = npt.NDArray[np.float64]

MIN_POOL_REQUESTS = 1024  # several times as many as run at once, so that some always wait
MAX_POOL_REQUESTS = 20_000
MAX_POOL_TOKENS = 32_000_000  # 128 MB of token ids in the scheduler
MAX_REQUESTS = 4_000_000  # of a run; about 200 bytes each
MAX_RUNS = 40_000_000  # of their prompts; about 30 bytes each
MAX_PASSES = PART_MASK // 2  # through the trace, after which prompts return
PROBE_S = 600.0
RESERVE = 2.0  # times what the probe promises: too many cost memory, too few another run
MAX_DRY_RATIO = 0.01  # of the pool


@dataclass(frozen=True, slots=True)
class OfflineSupply:
    """Passes through `source` share no prefix with each other: a new bulk job each time."""

    source: Workload
    pool_size: int

    @classmethod
    def of(cls, source: Workload, pool_size: int | None = None) -> OfflineSupply:
        """A pool of one pass through the trace, unless that is too small or too large.

        Raises ValueError if there are no requests.
        """
        if not len(source):
            raise ValueError("the offline workload has no requests")
        affordable = int(MAX_POOL_TOKENS / source.input_tokens.mean())
        wanted = pool_size or max(len(source), MIN_POOL_REQUESTS)
        size = max(1, min(wanted, MAX_POOL_REQUESTS, affordable))
        work = source.with_class(RequestClass.OFFLINE)
        return cls(replace(work, prompts=source.prompts.compact()), _coprime(size, len(source)))

    @property
    def max_requests(self) -> int:
        runs_per_request = self.source.prompts.streams.size / len(self.source)
        return min(MAX_REQUESTS, int(MAX_RUNS / runs_per_request))

    def workload(self, num_requests: int, first: int = 0) -> Workload:
        """Beginning with request number `first` of the source."""
        position = np.arange(first, first + num_requests)
        row, number = position % len(self.source), position // len(self.source) % MAX_PASSES
        follows = np.arange(num_requests, dtype=np.int32) - np.int32(self.pool_size)
        return Workload(
            arrival_s=np.zeros(num_requests),
            follows=np.maximum(follows, NO_REQUEST).astype(np.int32),
            output_tokens=self.source.output_tokens[row],
            request_class=self.source.request_class[row],
            priority=1 + np.arange(num_requests, dtype=np.int64),  # under policy `priority`, in the trace's order
            ttft_target_ms=self.source.ttft_target_ms[row],
            itl_target_ms=self.source.itl_target_ms[row],
            tpot_target_ms=self.source.tpot_target_ms[row],
            prompts=_in_parts(self.source.prompts.select(row), number),
            source=f"{self.source.source}, without end",
        )


def _coprime(size: int, num_rows: int) -> int:
    """The next larger number that shares no divisor with num_rows."""
    while gcd(size, num_rows) != 1:
        size += 1
    return size


def _in_parts(prompts: Prompts, part: npt.NDArray[np.int64]) -> Prompts:
    """part: of each request."""
    shift = part.astype(np.uint64) << np.uint64(PART_SHIFT)
    of_runs = np.repeat(shift, np.diff(prompts.offsets))
    return replace(prompts, streams=prompts.streams + of_runs, continuations=prompts.continuations + shift)


def probe_rate(supply: OfflineSupply, engine: SimulatedEngine) -> float:
    """Requests per second that end if the engine has nothing else to do."""
    result = simulate_beside(None, supply, engine, PROBE_S, rate=1.0)
    return max(1, num_ended(result)) / PROBE_S


def num_ended(result: SimulationResult) -> int:
    return int((result.records.outcome != SimulatedOutcome.PENDING).sum())


def simulate_beside(
    online: Workload | None,
    supply: OfflineSupply,
    engine: SimulatedEngine,
    horizon_s: float,
    *,
    rate: float,
    first: int = 0,
    on_progress: Progress | None = None,
) -> SimulationResult:
    """Online requests and a pool that stays full until the horizon.

    rate: requests per second that the pool is expected to lose; if it loses more, the run is repeated with more.
    Raises ValueError if the pool would need more requests than memory should hold, or if none of them fits the engine.
    """
    num_online = 0 if online is None else len(online)
    waiting = engine.with_policy(engine.policy, max_num_waiting=num_online + supply.pool_size)  # never more than these
    num_requests = supply.pool_size + int(RESERVE * rate * horizon_s) + 1
    while True:
        num_requests = min(num_requests, supply.max_requests)
        offline = supply.workload(num_requests, first)
        workload = offline if online is None else online.merged(offline)
        result = simulate(workload, waiting, horizon_s=horizon_s, on_progress=on_progress)
        outcome = result.records.outcome[result.workload.request_class == RequestClass.OFFLINE]
        if (outcome[-supply.pool_size :] != SimulatedOutcome.PENDING).mean() <= MAX_DRY_RATIO:
            return result
        if (outcome == SimulatedOutcome.TOO_LONG).all():
            raise ValueError(f"no request of {supply.source.source} fits the memory of an engine")
        if num_requests == supply.max_requests:
            raise ValueError(f"{num_requests} offline requests are not enough for {horizon_s:.0f} s: cut the trace")
        num_requests *= 2

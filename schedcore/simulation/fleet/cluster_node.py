"""One engine of a cluster under virtual time: the real scheduler with its memory tiers, and copies that take time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from schedcore._core import AdvisoryEvent, BatchPlan, Estimates, MoveKind, Scheduler, algorithms
from schedcore.routing.route import NodeLoad
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.event_queue import Channel, EventQueue

Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

MAX_REQUESTS = 1 << 20
LEASE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class NodeMemory:
    """Below the device; rates in bytes per second."""

    host_bytes: int
    has_disk: bool
    disk_rate: float = 3e9  # one of four engines' share of a machine's SSDs; nothing is lost there
    fetch_rate: float = 12.5e9  # what the scheduler believes of a fetch: what comes late comes over the network


@dataclass(slots=True)
class ClusterRequest:
    session: int
    prompt: Int32
    num_outputs: int
    asked_at: float
    on_end: Callable[[ClusterRequest], None]
    first_token_at: float = 0.0
    ended_at: float = 0.0
    num_cached: int = 0
    answer_base: int = 0  # tokens of a session are (base + position) modulo the vocabulary


class NodeErrors:
    """True over believed step times of a node, as cpp/core/simulation/step_errors.h draws them."""

    STEPS = 8  # that a ratio holds for, on average

    def __init__(self, quantiles: Sequence[float], seed: Sequence[int]) -> None:
        """quantiles: ascending; none: every step takes what is believed."""
        self._quantiles = quantiles
        self._places = np.linspace(0.0, 1.0, len(quantiles))
        self._rng = np.random.default_rng(seed)
        self._ratio = 0.0

    def next(self) -> float:
        if len(self._quantiles) == 0:
            return 1.0
        if self._ratio == 0.0 or self._rng.random() < 1 / self.STEPS:
            self._ratio = float(np.interp(self._rng.random(), self._places, self._quantiles))
        return self._ratio


class ClusterNode:
    """Steps follow each other while there is work. Copies run beside them; each direction has a channel."""

    def __init__(
        self, engine: SimulatedEngine, memory: NodeMemory, time: EventQueue, vocab_size: int,
        on_stored: Callable[[ClusterNode, UInt64], None], error_seed: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        unit_bytes = engine.model.unit_bytes(engine.block_size, engine.layers_per_unit)
        base = engine.scheduler_config(MAX_REQUESTS)
        self.block_bytes = unit_bytes * base.units_per_block
        num_host_blocks = memory.host_bytes // self.block_bytes
        tiers = {"num_host_blocks": num_host_blocks, "enable_disk": memory.has_disk} if num_host_blocks else {}
        config = engine.with_policy(engine.policy, **tiers).scheduler_config(MAX_REQUESTS)
        self._num_groups = config.num_groups
        self._max_batched_tokens = config.max_num_batched_tokens
        self._latency = engine.cost.to_core()
        self._errors = NodeErrors(engine.cost.error_ratios if engine.draw_errors else (), error_seed)
        host_rate = engine.HOST_BYTES_PER_SECOND
        estimates = Estimates(
            latency=self._latency, costs=engine.model.step_costs(), host_bytes_per_second=host_rate,
            unit_bytes=unit_bytes, disk_bytes_per_second=memory.fetch_rate,
        )  # fmt: skip
        self.scheduler = Scheduler(config, estimates)
        to_device = Channel(host_rate)
        self._channels = {
            MoveKind.SAVE: Channel(host_rate),
            MoveKind.LOAD: to_device,
            MoveKind.STEP_LOAD: to_device,
            MoveKind.STORE: Channel(memory.disk_rate),
            MoveKind.FETCH: Channel(memory.disk_rate),
        }
        self._time = time
        self._vocab_size = vocab_size
        self._on_stored = on_stored
        self._has_tiers = bool(tiers)
        self._open: dict[int, ClusterRequest] = {}
        self._last_id = 0
        self._is_stepping = False
        self._remote_until = 0.0  # what requests that came from elsewhere still wait for
        self.busy_seconds = 0.0

    @property
    def num_open(self) -> int:
        return len(self._open)

    def load(self) -> NodeLoad:
        """What it would report now."""
        begun = [request for request in self._open.values() if request.first_token_at > 0.0]
        waiting = sum(len(request.prompt) for request in self._open.values()) - sum(len(r.prompt) for r in begun)
        seconds = 0.0
        if waiting:
            budget = self._max_batched_tokens
            batch = algorithms.LatencyBatch(budget)
            batch.add_chunk(0, budget)
            seconds = waiting / budget * self._latency.predict(batch.features)
        num_begun = len(begun)
        tokens = sum(len(request.prompt) for request in begun)
        return NodeLoad(self._time.now, seconds, len(self._open) - num_begun, num_begun, tokens)

    def add(self, request: ClusterRequest, remote_until: float = 0.0) -> None:
        """`remote_until`: when the cache that another node had is here; the request waits for it as for its disk."""
        self._last_id += 1
        self._open[self._last_id] = request
        self._remote_until = max(self._remote_until, remote_until)
        self.scheduler.add_request(
            self._last_id, request.prompt, max_tokens=request.num_outputs, arrival_time=self._time.now,
            session_id=str(request.session),
        )  # fmt: skip
        self.kick()

    def advise(self, session: int) -> None:
        """The session's next request will come here."""
        self.scheduler.advise(str(session), AdvisoryEvent.TYPING, self._time.now, lease_seconds=LEASE_SECONDS)
        self.kick()

    def learn(self, keys: UInt64) -> None:
        """Another node has written these blocks where this one can fetch them."""
        self.scheduler.note_on_disk(keys)

    def kick(self) -> None:
        if self._is_stepping:
            return
        plan = self.scheduler.schedule(self._time.now)
        loaded_at = self._move(plan) if self._has_tiers else 0.0
        if plan:
            self._begin_step(plan, loaded_at)

    def _begin_step(self, plan: BatchPlan, loaded_at: float) -> None:
        """Layer groups whose blocks are there before `loaded_at` begin before (Estimates::overlapped_seconds)."""
        seconds = self._latency.predict(algorithms.plan_features(plan)) * self._errors.next()
        copies = max(0.0, loaded_at - self._time.now)
        seconds = max(seconds, copies) + min(seconds, copies) / self._num_groups
        sampled = plan.sample_seqs
        requests, positions = plan.request_ids[sampled], plan.seq_lens[sampled]
        self._is_stepping = True
        self.busy_seconds += seconds
        self._time.at(self._time.now + seconds, partial(self._end_step, requests, positions))

    def _end_step(self, requests: UInt64, positions: Int32) -> None:
        self._is_stepping = False
        bases = np.fromiter((self._open[int(r)].answer_base for r in requests), np.int32, len(requests))
        output = self.scheduler.commit((bases + positions) % self._vocab_size, self._time.now)
        ended = output.finish_reasons != 0
        for i in np.flatnonzero((output.num_output_tokens == 1) | ended):
            request_id = int(output.request_ids[i])
            self._note(request_id, int(output.num_output_tokens[i]), int(output.num_cached_tokens[i]), bool(ended[i]))
        self.kick()

    def _note(self, request_id: int, num_output_tokens: int, num_cached: int, has_ended: bool) -> None:
        request = self._open[request_id]
        if num_output_tokens == 1:
            request.first_token_at, request.num_cached = self._time.now, num_cached
        if has_ended:
            del self._open[request_id]
            request.ended_at = self._time.now
            request.on_end(request)

    def _move(self, plan: BatchPlan) -> float:
        """When what the plan's step waits for is there; 0: it waits for nothing."""
        kinds, loaded_at = plan.move_kinds, 0.0
        for kind in np.unique(kinds):
            chosen = kinds == kind
            ids = plan.move_ids[chosen]
            ready_at = self._channels[MoveKind(int(kind))].send(len(ids) * self.block_bytes, self._time.now)
            if kind == MoveKind.STEP_LOAD:
                loaded_at = ready_at
            if kind == MoveKind.FETCH and self._remote_until > 0.0:  # came over the network, which was charged already
                ready_at, self._remote_until = max(self._time.now, self._remote_until), 0.0
            keys = plan.move_keys[chosen] if kind == MoveKind.STORE else None
            self._time.at(ready_at, partial(self._end_moves, ids.copy(), keys))
        return loaded_at

    def _end_moves(self, ids: Int32, keys: UInt64 | None) -> None:
        self.scheduler.complete_moves(ids)
        if keys is not None:
            self._on_stored(self, keys)
        self.kick()

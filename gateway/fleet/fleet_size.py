"""How many nodes a fleet needs: online requests of the last minutes, of all its gateways, are served again by as few
simulated nodes as still hold the target for first tokens, and one more for what may come or die.

What came through other gateways engines tell. The simulator is that of `hocket plan --routing`: the gateway's own
route(), engines modelled by rate. Offline work asks for no nodes: it takes what is idle.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from schedcore.api.types import EngineInfo, EngineRequest, RequestClass
from schedcore.api.wire import ArrivalNote
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    FleetLoop,
    NodeTraits,
    RouteOptions,
    routing_named,
)
from schedcore.serving.arrival_news import TOKENS_PER_KEY, arrival_note
from schedcore.simulation.planning.planner import least_number

if TYPE_CHECKING:
    from schedcore._core_routing import FleetTrace

TURN_SECONDS = 30.0
WINDOW_SECONDS = 600.0
MAX_REQUESTS = 4096  # of the window that are served again; of more, the last
ATTAINED = 0.99  # of requests, or what MAX_NODES would reach, less SLACK
SLACK = 0.01
MAX_NODES = 64
SPARE = 1
UNKNOWN_OUTPUTS = 128.0  # tokens, before any request has ended


_Came = tuple[float, ArrivalNote]  # when, on the gateway's clock


class Leadership(Protocol):
    """Who of several gateways says how many nodes they need."""

    @property
    def is_leader(self) -> bool: ...
    @property
    def leader(self) -> str:
        """Its name; empty: nobody, or this gateway does not know."""

    async def keep(self, on_elected: Callable[[], None]) -> None:
        """For ever. on_elected: called when this one begins to lead."""


class FleetSize:
    def __init__(
        self, ttft_target_seconds: float | None, routing: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """ttft_target_seconds: None: nobody says what is enough, and `desired` stays None."""
        self.desired: int | None = None
        self._target, self._routing, self._clock = ttft_target_seconds, routing, clock
        self._new: deque[tuple[float, EngineRequest]] = deque(maxlen=MAX_REQUESTS)
        self._noted: deque[int] = deque()  # request ids: one that goes on at another engine is the same request
        self._noted_ids: set[int] = set()
        self._others: deque[_Came] = deque(maxlen=MAX_REQUESTS)  # new ones, too
        self._window: list[_Came] = []  # in order of time
        self._is_due = asyncio.Event()

    def note(self, requests: Sequence[EngineRequest]) -> None:
        """They came now."""
        if self._target is not None:
            now = self._clock()
            for asked in requests:
                if asked.request_class is not RequestClass.OFFLINE and self._is_new(asked.request_id):
                    self._new.append((now, asked))

    def note_others(self, arrivals: Sequence[tuple[float, ArrivalNote]]) -> None:
        """At other gateways; seconds ago."""
        now = self._clock()
        self._others.extend((now - ago, note) for ago, note in arrivals)

    def count_soon(self) -> None:
        """Nobody has counted for a while: not at the next turn only."""
        self._is_due.set()

    def _is_new(self, request_id: int) -> bool:
        if request_id in self._noted_ids:
            return False
        if len(self._noted) == 2 * MAX_REQUESTS:
            self._noted_ids.discard(self._noted.popleft())
        self._noted.append(request_id)
        self._noted_ids.add(request_id)
        return True

    async def keep(self, read: Callable[[], tuple[EngineInfo, float] | None]) -> None:
        """For ever. read: an engine of the fleet, and how many tokens an answer has on average; None: nobody knows, or
        it is not for this gateway to say.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TURN_SECONDS):
                    await self._is_due.wait()
            self._is_due.clear()
            found = None if self._target is None else read()
            self.desired = None if found is None else await asyncio.to_thread(self.count, *found)

    def count(self, info: EngineInfo, mean_outputs: float) -> int | None:
        """None: the engine does not say how long its steps take. Takes seconds, mostly without Python's lock."""
        self._take_in()
        if self._target is None or not info.latency_coefficients:
            return None
        if not self._window:
            return SPARE
        traits, trace = _traits(info), _trace(self._window, mean_outputs)
        found: dict[int, float] = {}

        def attained(num_nodes: int) -> float:
            if num_nodes not in found:
                loop = FleetLoop(
                    trace,
                    traits,
                    RouteOptions(routing_named(self._routing)),
                    num_nodes=num_nodes,
                    ttft_target_s=self._target or 0.0,
                    max_running=info.max_num_seqs,
                    tokens_per_key=TOKENS_PER_KEY,
                )
                loop.run(np.inf)
                found[num_nodes] = float(np.mean(loop.records()["ttft_s"] <= self._target))
            return found[num_nodes]

        enough = min(ATTAINED, attained(MAX_NODES) - SLACK)
        return (least_number(lambda number: attained(number) >= enough, MAX_NODES) or MAX_NODES) + SPARE

    def _take_in(self) -> None:
        while self._new:
            at, asked = self._new.popleft()
            if (note := arrival_note(asked)) is not None:
                self._window.append((at, note))
        while self._others:
            self._window.append(self._others.popleft())
        begin = self._clock() - WINDOW_SECONDS
        self._window = [came for came in self._window if came[0] >= begin]
        self._window.sort(key=lambda came: came[0])
        del self._window[:-MAX_REQUESTS]


def _trace(window: list[_Came], mean_outputs: float) -> FleetTrace:
    sessions = np.array([(note.session >> 1) or -1 for _, note in window], np.int64)
    _, first = np.unique(sessions, return_index=True)
    is_follow_up = (sessions >= 0).astype(np.uint8)
    is_follow_up[first] = 0
    outputs = [max(1.0, min(note.max_outputs, mean_outputs)) for _, note in window]
    keys = [np.frombuffer(note.keys, "<u8") for _, note in window]
    return {
        "arrival_s": np.array([at - window[0][0] for at, _ in window], np.float64),
        "num_tokens": np.array([max(1, note.num_tokens) for _, note in window], np.int32),
        "num_outputs": np.array(outputs, np.int32),
        "session": sessions,
        "is_follow_up": is_follow_up,
        "key_offsets": np.cumsum([0, *map(len, keys)], dtype=np.int64),
        "keys": np.concatenate(keys).astype(np.uint64),
    }


def _traits(info: EngineInfo) -> NodeTraits:
    """Of each node: all are taken to be as this one."""
    device_tokens = info.num_units / max(1, info.units_per_block) * info.block_size
    return NodeTraits(
        core_model(info.latency_form or "corrected", LatencyCoefficients(**info.latency_coefficients)),
        max_batched_tokens=info.max_num_batched_tokens or 2048,
        device_tokens=device_tokens,
        kept_tokens=device_tokens,
        pulls=False,
    )

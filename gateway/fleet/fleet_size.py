"""How many nodes a fleet needs: this gateway's online requests of the last minutes are served again by as few simulated
nodes as still hold the target for first tokens, and one more for what may come or die.

The simulator is that of `hocket plan --routing`: the gateway's own route(), engines modelled by rate. Offline work asks
for no nodes: it takes what is idle.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from schedcore.api.types import EngineInfo, EngineRequest, RequestClass
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    FleetLoop,
    NodeTraits,
    RouteOptions,
    prefix_keys,
    routing_named,
    session_digest,
)
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
TOKENS_PER_KEY = 128
MAX_KEYS_TOKENS = 1 << 15  # of a prompt that are looked at
UNKNOWN_OUTPUTS = 128.0  # tokens, before any request has ended


@dataclass(frozen=True, slots=True)
class Served:
    """A request that came."""

    at: float
    num_tokens: int
    max_outputs: int
    session: int
    keys: npt.NDArray[np.uint64]


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
        self._window: deque[Served] = deque(maxlen=MAX_REQUESTS)
        self._secret = secrets.randbits(63)

    def note(self, requests: Sequence[EngineRequest]) -> None:
        """They came now."""
        if self._target is not None:
            now = self._clock()
            for asked in requests:
                if asked.request_class is not RequestClass.OFFLINE and self._is_new(asked.request_id):
                    self._new.append((now, asked))

    def _is_new(self, request_id: int) -> bool:
        if request_id in self._noted_ids:
            return False
        if len(self._noted) == 2 * MAX_REQUESTS:
            self._noted_ids.discard(self._noted.popleft())
        self._noted.append(request_id)
        self._noted_ids.add(request_id)
        return True

    async def keep(self, read: Callable[[], tuple[EngineInfo, float] | None]) -> None:
        """For ever. read: an engine of the fleet, and how many tokens an answer has on average; None: nobody knows."""
        while True:
            await asyncio.sleep(TURN_SECONDS)
            if self._target is not None and (found := read()) is not None:
                self.desired = await asyncio.to_thread(self.count, *found)

    def count(self, info: EngineInfo, mean_outputs: float) -> int | None:
        """None: the engine does not say how long its steps take. Takes seconds, mostly without Python's lock."""
        self._take_in()
        if self._target is None or not info.latency_coefficients:
            return None
        if not self._window:
            return SPARE
        traits, trace = _traits(info), _trace(list(self._window), mean_outputs)
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
            ids = np.array(asked.prompt_token_ids[:MAX_KEYS_TOKENS], np.int32)
            salt = self._secret ^ session_digest("", asked.cache_salt, asked.cache_salt)
            session = session_digest(asked.tenant, asked.cache_salt, asked.session_id) >> 1  # signed, in a trace
            keys = prefix_keys(salt, ids, TOKENS_PER_KEY)
            self._window.append(Served(at, len(asked.prompt_token_ids), asked.max_tokens, session, keys))
        begin = self._clock() - WINDOW_SECONDS
        while self._window and self._window[0].at < begin:
            self._window.popleft()


def _trace(window: list[Served], mean_outputs: float) -> FleetTrace:
    sessions = np.array([served.session or -1 for served in window], np.int64)
    _, first = np.unique(sessions, return_index=True)
    is_follow_up = (sessions >= 0).astype(np.uint8)
    is_follow_up[first] = 0
    outputs = [max(1.0, min(served.max_outputs, mean_outputs)) for served in window]
    return {
        "arrival_s": np.array([served.at - window[0].at for served in window], np.float64),
        "num_tokens": np.array([max(1, served.num_tokens) for served in window], np.int32),
        "num_outputs": np.array(outputs, np.int32),
        "session": sessions,
        "is_follow_up": is_follow_up,
        "key_offsets": np.cumsum([0, *(len(served.keys) for served in window)], dtype=np.int64),
        "keys": np.concatenate([served.keys for served in window]),
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

"""Which node takes a request: what this gateway knows of its nodes, told to route() (schedcore/routing), by name.

A node whose engine does not say how long its steps take is taken to be as fast as the others of unknown speed.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping

import numpy as np

from schedcore.api.types import Advisory, EngineInfo, EngineRequest, EngineStats
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    NodeLoad,
    NodeState,
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteReason,
    RouteRequest,
    prefix_keys,
    route,
    routing_named,
    session_digest,
)

TOKENS_PER_KEY = 128  # of a prompt's beginning that is remembered; shorter ones are sooner computed than looked for
MAX_KEYS_TOKENS = 1 << 15  # of a prompt that are looked at
EXPECTED_OUTPUTS = 128.0  # of a request that asks for more
LEAD_SECONDS = 5.0  # from an advisory to its request
UNKNOWN_SPEED = LatencyCoefficients(step_base=0.005, prefill_token=1e-4, decode_seq=1e-4, decode_context=1e-8)


class NodeRouting:
    def __init__(self, routing: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ValueError for an unknown routing."""
        self._options = RouteOptions(routing_named(routing), salt=secrets.randbits(63))
        self._table = NodeTable()
        self._clock = clock
        self._secret = secrets.randbits(63)  # nobody can ask what was asked before by prompts made for it
        self._numbers: dict[str, int] = {}  # by name
        self._names: list[str] = []
        self._incarnations: dict[str, int] = {}
        self._tokens_per_unit: dict[str, float] = {}
        self._seen: dict[str, EngineStats] = {}
        self._num_asked = 0
        self.num_routed: Counter[str] = Counter()  # by reason

    def join(self, name: str, incarnation: str, info: EngineInfo) -> None:
        """A node's engine is ready. Of a new incarnation nothing is known."""
        digest = hashlib.blake2b(incarnation.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        if self._incarnations.get(name) == number:
            return
        if name in self._numbers:
            self._table.restart_node(self._numbers[name], _traits(info), number)
        else:
            self._numbers[name] = self._table.add_node(_traits(info), number)
            self._names.append(name)
        self._incarnations[name] = number
        self._tokens_per_unit[name] = info.block_size / max(1, info.units_per_block)
        self._seen.pop(name, None)

    def choose(self, asked: EngineRequest | Advisory, nodes: Mapping[str, EngineStats | None]) -> str | None:
        """nodes: those that could take it, all of which have joined, and what their engines last said.

        None: there is none. What is chosen counts as sent.
        """
        now = self._clock()
        for name, number in self._numbers.items():
            state = NodeState.UP if name in nodes else NodeState.GONE
            if self._table.state(number) is not state:
                self._table.set_state(number, state)
        for name, stats in nodes.items():
            self._note_load(name, stats, now)
        self._num_asked += 1
        request = self._request(asked)
        choice = route(request, self._table, self._options, now)
        if choice.node is None:
            return None
        self._table.note_choice(request, choice, now)
        if isinstance(asked, EngineRequest):
            self.num_routed[RouteReason(choice.reason).name.lower()] += 1
        return self._names[choice.node]

    def _note_load(self, name: str, stats: EngineStats | None, now: float) -> None:
        if stats is None or stats is self._seen.get(name):
            return
        self._seen[name] = stats
        num_units = max(0, stats.num_units - stats.num_free_units - stats.num_cached_units)
        load = NodeLoad(
            as_of=now,
            queue_seconds=stats.predicted_ttft_seconds,
            num_waiting=sum(stats.num_waiting),
            num_running=sum(stats.num_running),
            running_tokens=num_units * self._tokens_per_unit[name],
        )
        self._table.note_load(self._numbers[name], self._incarnations[name], load)

    def _request(self, asked: EngineRequest | Advisory) -> RouteRequest:
        session = session_digest(asked.tenant, asked.cache_salt, asked.session_id)
        if isinstance(asked, Advisory):
            return RouteRequest(
                self._num_asked, max(1, len(asked.draft_token_ids)), session=session, lead_seconds=LEAD_SECONDS
            )
        ids = np.array(asked.prompt_token_ids[:MAX_KEYS_TOKENS], np.int32)
        secret = self._secret ^ session_digest("", asked.cache_salt, asked.cache_salt)
        target = asked.targets.ttft_ms
        return RouteRequest(
            self._num_asked,
            len(asked.prompt_token_ids),
            keys=prefix_keys(secret, ids, TOKENS_PER_KEY),
            tokens_per_key=TOKENS_PER_KEY,
            session=session,
            expected_outputs=min(float(asked.max_tokens), EXPECTED_OUTPUTS),
            age_seconds=asked.age_ms / 1e3,
            ttft_target_seconds=np.inf if target is None else target / 1e3,
            request_class=asked.request_class,
            priority=asked.priority,
        )


def _traits(info: EngineInfo) -> NodeTraits:
    known = LatencyCoefficients(**info.latency_coefficients) if info.latency_coefficients else UNKNOWN_SPEED
    device_tokens = info.num_units / max(1, info.units_per_block) * info.block_size
    return NodeTraits(
        core_model(info.latency_form or "corrected", known),
        max_batched_tokens=info.max_num_batched_tokens or 2048,
        device_tokens=device_tokens,
        kept_tokens=device_tokens,
    )

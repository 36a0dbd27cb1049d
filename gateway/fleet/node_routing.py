"""Which node takes a request: what this gateway knows of its nodes, told to route() (schedcore/routing), by name.

A node whose engine does not say how long its steps take is taken to be as fast as the others of unknown speed.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from schedcore.api.types import Advisory, EngineInfo, EngineRequest, EngineStats
from schedcore.api.wire import SessionNote
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    Choice,
    NodeLoad,
    NodeState,
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteReason,
    RouteRequest,
    cost_of,
    prefix_keys,
    route,
    routing_named,
    session_digest,
)

TOKENS_PER_KEY = 128  # of a prompt's beginning that is remembered; shorter ones are sooner computed than looked for
MAX_KEYS_TOKENS = 1 << 15  # of a prompt that are looked at
EXPECTED_OUTPUTS = 128.0  # of a request that asks for more
LEAD_SECONDS = 5.0  # from an advisory to its request
EXPECTED_SECONDS = 20.0  # that a request is expected which another gateway was told of
WORTH_ASKING_SECONDS = 0.05  # of prefill: below, a request away from its session's home is computed there unasked
UNKNOWN_SPEED = LatencyCoefficients(step_base=0.005, prefill_token=1e-4, decode_seq=1e-4, decode_context=1e-8)


@dataclass(frozen=True, slots=True)
class Destination:
    node: str  # by name, as all nodes here
    source: str | None = None  # another node, whose cache is to be pulled


class NodeRouting:
    def __init__(self, routing: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Raises ValueError for an unknown routing."""
        self._options = RouteOptions(routing_named(routing), salt=secrets.randbits(63))
        self._table = NodeTable()
        self._clock = clock
        self._secret = secrets.randbits(63)  # nobody can ask what was asked before by prompts made for it
        self._numbers: dict[str, int] = {}  # by name
        self._names: list[str] = []
        self._traits: dict[str, NodeTraits] = {}
        self._free_numbers: list[int] = []  # of nodes that are forgotten
        self._incarnations: dict[str, int] = {}
        self._tokens_per_unit: dict[str, float] = {}
        self._seen: dict[str, EngineStats] = {}
        self._machines: dict[str, int] = {}
        self._free_places: list[int] = []  # of machines that are forgotten
        self._machine_of: dict[str, int] = {}
        self._last_source: dict[str, str] = {}
        self._num_asked = 0
        self.num_routed: Counter[str] = Counter()  # by reason

    def join(
        self, name: str, incarnation: str, info: EngineInfo, machine: str = "", *, gives_blocks: bool = False
    ) -> None:
        """A node's engine is ready. Of a new incarnation nothing is known. gives_blocks: and takes those of others."""
        digest = hashlib.blake2b(incarnation.encode(), digest_size=8).digest()
        number = int.from_bytes(digest, "little") >> 1
        if self._incarnations.get(name) == number:
            return
        if machine not in self._machines:
            self._machines[machine] = self._free_places.pop() if self._free_places else len(self._machines)
        place = self._machines[machine]
        traits = _traits(info, place, gives_blocks=gives_blocks)
        self._machine_of[name] = place
        self._traits[name] = traits
        if name not in self._numbers and self._free_numbers:
            self._numbers[name] = self._free_numbers.pop()
            self._names[self._numbers[name]] = name
        if name in self._numbers:
            self._table.restart_node(self._numbers[name], traits, number)
        else:
            self._numbers[name] = self._table.add_node(traits, number)
            self._names.append(name)
        self._incarnations[name] = number
        self._tokens_per_unit[name] = info.block_size / max(1, info.units_per_block)
        self._seen.pop(name, None)

    def forget(self, name: str) -> None:
        """The node is gone, and its name may never come again. Idempotent."""
        if name not in self._numbers:
            return
        number, place = self._numbers.pop(name), self._machine_of.pop(name)
        self._table.restart_node(number, self._traits.pop(name), 0)
        self._table.set_state(number, NodeState.GONE)
        self._free_numbers.append(number)
        if place not in self._machine_of.values():
            self._machines = {machine: other for machine, other in self._machines.items() if other != place}
            self._free_places.append(place)
        del self._incarnations[name], self._tokens_per_unit[name]
        self._seen.pop(name, None)
        self._last_source.pop(name, None)
        self._last_source = {node: source for node, source in self._last_source.items() if source != name}

    def choose(
        self,
        asked: EngineRequest | Advisory,
        nodes: Mapping[str, EngineStats | None],
        draining: Collection[str] = (),
        num_open: Mapping[str, int] = MappingProxyType({}),
    ) -> Destination | None:
        """nodes: those that could take it, all of which have joined, and what their engines last said. draining: those
        that take nothing, and whose cache is still to be had. num_open: requests there, where more is known than
        what the engines last said.

        None: there is none. What is chosen counts as sent.
        """
        now = self._clock()
        for name, number in self._numbers.items():
            state = NodeState.UP if name in nodes else NodeState.DRAINING if name in draining else NodeState.GONE
            if self._table.state(number) is not state:
                self._table.set_state(number, state)
        for name, stats in nodes.items():
            self._note_load(name, stats, now)
        for name, number in num_open.items():
            self._table.note_open(self._numbers[name], number)
        self._num_asked += 1
        request = self._request(asked)
        choice = route(request, self._table, self._options, now)
        if choice.node is None:
            return None
        source = self._source(asked, choice)
        self._table.note_choice(request, choice, now)
        if isinstance(asked, EngineRequest):
            self.num_routed[RouteReason(choice.reason).name.lower()] += 1
        node = self._names[choice.node]
        if source is None:
            return Destination(node)
        self._last_source[node] = self._names[source]
        return Destination(node, self._names[source])

    def note_sent(self, asked: EngineRequest, name: str, stats: EngineStats | None) -> None:
        """Somebody else has chosen the node: what it has to do now, and what it will hold.

        stats: what its engine last said. One that is about to join is not known yet.
        """
        if name not in self._numbers:
            return
        now, number = self._clock(), self._numbers[name]
        if self._table.state(number) is not NodeState.UP:
            self._table.set_state(number, NodeState.UP)
        self._note_load(name, stats, now)
        self._num_asked += 1
        request = self._request(asked)
        choice = cost_of(request, self._table, self._options, now, number)
        self._table.note_choice(request, choice, now)

    def note_sessions(self, name: str, sessions: Sequence[tuple[int, int]]) -> None:
        """The node has them now: digests and tokens."""
        for digest, num_tokens in sessions:
            self._table.note_session(digest, self._numbers[name], self._incarnations[name], num_tokens)

    def note_others(self, name: str, notes: Sequence[SessionNote]) -> None:
        """Other gateways sent these sessions there, or announced them. REQUIRES: the node could take requests."""
        if name not in self._numbers:
            return
        number, incarnation, until = self._numbers[name], self._incarnations[name], self._clock() + EXPECTED_SECONDS
        if self._table.state(number) is NodeState.GONE:  # at the last choice
            self._table.set_state(number, NodeState.UP)
        for note in notes:
            if not note.is_expected:
                self._table.meet_session(note.digest)
                self._table.note_session(note.digest, number, incarnation, note.num_tokens)
            else:
                self._table.expect_session(note.digest, number, until)

    def holders(self, asked: Advisory) -> list[str]:
        """Nodes that know the session, or will: the likeliest first."""
        digest = session_digest(asked.tenant, asked.cache_salt, asked.session_id)
        expected = self._table.expected_node(digest)
        numbers = [number for number, _ in self._table.session_nodes(digest)]
        return [self._names[number] for number in dict.fromkeys([*([] if expected is None else [expected]), *numbers])]

    def _source(self, asked: EngineRequest | Advisory, choice: Choice) -> int | None:
        """Whoever the router would pull from; where it moves a session without saying so, the session's home: the
        engine that takes it knows better what is worth it. A request is not kept waiting for little."""
        if choice.source is not None:
            return choice.source
        held = self._table.session_nodes(session_digest(asked.tenant, asked.cache_salt, asked.session_id))
        if not held or any(number == choice.node for number, _ in held[:1]):
            return None
        if isinstance(asked, EngineRequest) and choice.prefill_seconds < WORTH_ASKING_SECONDS:
            return None
        return held[0][0]

    def _note_load(self, name: str, stats: EngineStats | None, now: float) -> None:
        if stats is None or stats is self._seen.get(name):
            return
        before = self._seen.get(name)
        self._seen[name] = stats
        self._note_pulls(name, before, stats)
        num_units = max(0, stats.num_units - stats.num_free_units - stats.num_cached_units)
        load = NodeLoad(
            as_of=now,
            queue_seconds=stats.predicted_ttft_seconds,
            num_waiting=sum(stats.num_waiting),
            num_running=sum(stats.num_running),
            running_tokens=num_units * self._tokens_per_unit[name],
        )
        self._table.note_load(self._numbers[name], self._incarnations[name], load)

    def _note_pulls(self, name: str, before: EngineStats | None, stats: EngineStats) -> None:
        """Between which machines: those of the node, and of the one that it was told last to pull from."""
        if before is None or name not in self._last_source:
            return
        seconds = stats.pull_seconds - before.pull_seconds
        num_bytes = (stats.num_pulled_blocks - before.num_pulled_blocks) * stats.block_bytes
        if seconds > 0 and num_bytes > 0:
            there, here = self._machine_of[self._last_source[name]], self._machine_of[name]
            self._table.note_pull_rate(there, here, num_bytes / seconds)

    def _request(self, asked: EngineRequest | Advisory) -> RouteRequest:
        session = session_digest(asked.tenant, asked.cache_salt, asked.session_id)
        if isinstance(asked, Advisory):
            known = max((tokens for _, tokens in self._table.session_nodes(session)), default=0.0)
            num_tokens = max(1.0, len(asked.draft_token_ids), known + 1)
            return RouteRequest(self._num_asked, num_tokens, session=session, lead_seconds=LEAD_SECONDS)
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


def _traits(info: EngineInfo, machine: int, *, gives_blocks: bool) -> NodeTraits:
    known = LatencyCoefficients(**info.latency_coefficients) if info.latency_coefficients else UNKNOWN_SPEED
    device_tokens = info.num_units / max(1, info.units_per_block) * info.block_size
    host_tokens = info.host_cache_bytes / info.block_bytes * info.block_size if info.block_bytes else 0.0
    return NodeTraits(
        core_model(info.latency_form or "corrected", known),
        max_batched_tokens=info.max_num_batched_tokens or 2048,
        device_tokens=device_tokens,
        kept_tokens=device_tokens + host_tokens,
        bytes_per_token=info.block_bytes / info.block_size if gives_blocks else 0.0,
        restore_bytes_per_second=info.restore_bytes_per_second,
        machine=machine,
        pulls=gives_blocks,
    )

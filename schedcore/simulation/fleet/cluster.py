"""Several engines under one virtual clock, who asks them, and route() between (Symphony, section 3).

The scheduler of every engine is the real one, memory tiers included; the router is the gateway's, and its table is
never stale here. What a node has written to its disk, every other
node can fetch over the network: then that copy is its disk's. Where an advisory names the node, the copy begins with
it, else with the request. The network is charged for a whole conversation at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from schedcore.routing.route import (
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteRequest,
    route,
    routing_named,
)
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.fleet.chat_users import ChatUser, Round, pause
from schedcore.simulation.fleet.cluster_node import ClusterNode, ClusterRequest, NodeMemory
from schedcore.simulation.fleet.event_queue import Channel, EventQueue

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
UInt64 = npt.NDArray[np.uint64]

VOCAB_SIZE = 32_000
START_SECONDS = 60.0  # over which users begin


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Raises ValueError for an unknown routing.

    routing     a name of schedcore/routing; advised: the node is chosen when the user begins to type
    """

    engine: SimulatedEngine  # of each node
    memory: NodeMemory
    num_nodes: int = 8
    nodes_per_machine: int = 4
    routing: str = "least_loaded"
    network_rate: float = 12.5e9  # bytes per second of a machine: 100 Gbit/s
    missed_ratio: float = 0.0  # of advisories

    def __post_init__(self) -> None:
        routing_named(self.routing)


@dataclass(frozen=True, slots=True)
class ClusterResult:
    """One entry per turn that ended after the warm-up; times in seconds."""

    ttft: Float64
    e2e: Float64
    num_output: Int32
    num_prompt: Int32
    num_cached: Int32
    busy: Float64  # [num_nodes], share of the time
    imbalance: float  # most requests on a node over the median, mean over samples
    seconds: float

    @property
    def normalised_latency(self) -> float:
        """Mean over turns of seconds per output token."""
        return float(np.mean(self.e2e / self.num_output)) if len(self.e2e) else float("nan")


@dataclass(slots=True)
class _Conversation:
    number: int
    length: int = 0
    home: int | None = None  # where its last request ran
    target: int | None = None  # where its cache is on its way to
    ready_at: float = 0.0  # and there


def simulate_cluster(
    cluster: Cluster, num_users: int, conversations: list[list[Round]], *, seconds: float, warm_up: float, seed: int
) -> ClusterResult:
    """The same arguments give the same result, bit by bit."""
    run = _Run(cluster, num_users, conversations, seed)
    run.time.run(warm_up)
    busy = np.array([node.busy_seconds for node in run.nodes])
    run.ended.clear()
    run.loads.clear()
    run.time.run(warm_up + seconds)
    ended = run.ended
    loads = np.array(run.loads, float).reshape(-1, cluster.num_nodes)
    return ClusterResult(
        ttft=np.array([r.first_token_at - r.asked_at for r in ended]),
        e2e=np.array([r.ended_at - r.asked_at for r in ended]),
        num_output=np.array([r.num_outputs for r in ended], np.int32),
        num_prompt=np.array([len(r.prompt) for r in ended], np.int32),
        num_cached=np.array([r.num_cached for r in ended], np.int32),
        busy=(np.array([node.busy_seconds for node in run.nodes]) - busy) / seconds,
        imbalance=float(np.mean(loads.max(1) / np.maximum(1.0, np.median(loads, 1)))),
        seconds=seconds,
    )


def make_table(cluster: Cluster) -> NodeTable:
    """As the nodes would tell a gateway of themselves."""
    engine, memory = cluster.engine, cluster.memory
    per_token = engine.model.kv_bytes_per_token
    device = engine.cache_bytes / per_token
    kept = float("inf") if memory.has_disk else device + memory.host_bytes / per_token
    table = NodeTable(pull_bytes_per_second=cluster.network_rate)
    for number in range(cluster.num_nodes):
        machine = number // cluster.nodes_per_machine
        traits = NodeTraits(
            engine.cost.to_core(), max_batched_tokens=engine.scheduler_config(1).max_num_batched_tokens,
            device_tokens=device, kept_tokens=kept, bytes_per_token=per_token, machine=machine,
            restore_bytes_per_second=engine.HOST_BYTES_PER_SECOND if memory.host_bytes else 0.0, pulls=memory.has_disk,
        )  # fmt: skip
        table.add_node(traits, 1)
        table.note_pull_rate(machine, machine, engine.HOST_BYTES_PER_SECOND)
    return table


class _Run:
    def __init__(self, cluster: Cluster, num_users: int, conversations: list[list[Round]], seed: int) -> None:
        self._cluster = cluster
        self.time = EventQueue()
        self.nodes = [
            ClusterNode(cluster.engine, cluster.memory, self.time, VOCAB_SIZE, self._share, [seed, number])
            for number in range(cluster.num_nodes)
        ]
        self._networks = [
            Channel(cluster.network_rate) for _ in range(-(-cluster.num_nodes // cluster.nodes_per_machine))
        ]
        self._options = RouteOptions(routing_named(cluster.routing))
        self._table = make_table(cluster)
        self._num_choices = 0
        self._expected = [0] * cluster.num_nodes  # requests that are announced there
        self._mean_new = float(np.mean([turn.num_new for rounds in conversations for turn in rounds]))
        self._num_conversations = 0
        self.ended: list[ClusterRequest] = []
        self.loads: list[list[int]] = []
        for number in range(num_users):
            user = ChatUser(number, conversations, seed)
            self.time.at(user.first_delay(START_SECONDS), partial(self._next, user, None))
        self.time.at(0.0, self._sample)

    def _sample(self) -> None:
        self.loads.append([node.num_open + expected for node, expected in zip(self.nodes, self._expected, strict=True)])
        self.time.at(self.time.now + 1.0, self._sample)

    def _next(self, user: ChatUser, conversation: _Conversation | None) -> None:
        """An answer has been given, or a user comes."""
        previous, turn = user.next_round()
        if previous is None or conversation is None:
            self._num_conversations += 1
            self._ask(user, _Conversation(self._num_conversations), turn)
            return
        rest = pause(previous, turn, self._mean_new)
        typing_at = self.time.now + rest.before_typing
        if self._cluster.routing == "advised" and not user.is_missed(self._cluster.missed_ratio):
            self.time.at(typing_at, partial(self._advise, conversation, rest.typing))
        self.time.at(typing_at + rest.typing, partial(self._ask, user, conversation, turn))

    def _advise(self, conversation: _Conversation, lead: float) -> None:
        node = self._choose(conversation, max(1, conversation.length), lead=max(lead, 1e-3))
        conversation.target = node
        self._expected[node] += 1
        if node == conversation.home:
            self.nodes[node].advise(conversation.number)
        else:
            conversation.ready_at = self._migrate(conversation, node)

    def _ask(self, user: ChatUser, conversation: _Conversation, turn: Round) -> None:
        base = conversation.number * 37 % VOCAB_SIZE
        length = conversation.length + turn.num_new
        prompt = ((base + np.arange(length)) % VOCAB_SIZE).astype(np.int32)
        node, remote_until = self._place(conversation, length)
        conversation.length = length + turn.num_output
        request = ClusterRequest(
            conversation.number, prompt, turn.num_output, self.time.now,
            partial(self._answered, user, conversation), answer_base=base,
        )  # fmt: skip
        conversation.home = node
        self.nodes[node].add(request, remote_until)

    def _choose(self, conversation: _Conversation, num_tokens: int, *, lead: float = 0.0) -> int:
        for number, node in enumerate(self.nodes):
            self._table.note_load(number, 1, node.load())
        self._num_choices += 1
        request = RouteRequest(self._num_choices, num_tokens, session=conversation.number, lead_seconds=lead)
        choice = route(request, self._table, self._options, self.time.now)
        self._table.note_choice(request, choice, self.time.now)
        assert choice.node is not None, "all nodes of a simulated cluster are up"
        return choice.node

    def _place(self, conversation: _Conversation, num_tokens: int) -> tuple[int, float]:
        """The node, and when the conversation's cache is there if it is to come from another."""
        node = self._choose(conversation, num_tokens)
        target, conversation.target = conversation.target, None
        if target is not None:
            self._expected[target] -= 1
        if conversation.home in (None, node) or not self._cluster.memory.has_disk:
            return node, 0.0
        return node, conversation.ready_at if node == target else self._migrate(conversation, node)

    def _migrate(self, conversation: _Conversation, node: int) -> float:
        """When its cache is there. Engines of one machine copy through its memory."""
        num_bytes = conversation.length / self._cluster.engine.block_size * self.nodes[node].block_bytes
        here, there = self._machine(node), self._machine(conversation.home or 0)
        if here == there:
            return self.time.now + num_bytes / self._cluster.engine.HOST_BYTES_PER_SECOND
        return max(self._networks[m].send(num_bytes, self.time.now) for m in (here, there))

    def _machine(self, node: int) -> int:
        return node // self._cluster.nodes_per_machine

    def _answered(self, user: ChatUser, conversation: _Conversation, request: ClusterRequest) -> None:
        self.ended.append(request)
        self._next(user, conversation)

    def _share(self, origin: ClusterNode, keys: UInt64) -> None:
        if self._cluster.routing == "sticky":
            return
        for node in self.nodes:
            if node is not origin:
                node.learn(keys)

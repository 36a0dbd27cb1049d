"""A gateway's side of a fleet: who is part of it, what waits, what is dropped. Nodes are scripts, engines are fake."""

from __future__ import annotations

import asyncio
import os
import random
import struct
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from fakes.eventually import eventually
from fakes.fake_engine import INFO, FakeSteps
from fakes.manual_clock import ManualClock
from gateway.base.supervision import Supervisor
from gateway.engine.engine_client import EngineDeadError
from gateway.fleet import fleet_peer
from gateway.fleet.fleet_door import FleetDoor
from gateway.fleet.fleet_engine import FleetEngine
from gateway.fleet.fleet_stats import GAUGES, GREATEST, LEAST, MEANS, OF_GATEWAY, add_counters, sum_stats
from gateway.fleet.network import dial
from gateway.fleet.node_routing import NodeRouting
from schedcore.api import fleet_wire, wire
from schedcore.api.cluster_tls import GATEWAY
from schedcore.api.fleet_wire import (
    Answered,
    Drain,
    DrainNode,
    EngineSeat,
    Fence,
    FromGateway,
    Heard,
    NodeHello,
    NodeState,
    Refused,
    SeatState,
    Superseded,
    Welcome,
)
from schedcore.api.frame_socket import FrameSocket
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, EngineStats, ErrorCode, FinishReason, TokenDelta
from schedcore.api.wire import ArrivalNote
from schedcore.routing.route import session_digest
from schedcore.serving.gateway_link import GatewayLink
from schedcore.serving.network_door import NetworkOptions

NUM_FRAMES = int(os.environ.get("HOCKET_TEST_FLEET_FRAMES", "2000"))


@pytest.fixture
async def fleet() -> AsyncIterator[FleetEngine]:
    engine = FleetEngine(FleetDoor("tcp://127.0.0.1:0", None), None, "fingerprint", Supervisor(), 60.0, 0.5)
    starting = asyncio.create_task(engine.start())
    yield engine
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    await engine.close()


async def test_it_says_how_many_nodes_its_requests_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.fleet.fleet_size.TURN_SECONDS", 0.01)
    door = FleetDoor("tcp://127.0.0.1:0", None)
    engine = FleetEngine(door, None, "fingerprint", Supervisor(), 60.0, 60.0, ttft_target_seconds=0.05)
    starting = asyncio.create_task(engine.start())
    try:
        node = await ScriptedNode.come(engine)
        node.say_state()
        await eventually(lambda: engine.stats())
        stats = engine.stats()
        assert stats is not None
        assert stats.num_desired_nodes is None  # no engine has said yet how long its steps take
        slow = {"step_base": 0.001, "prefill_token": 0.001, "decode_seq": 1e-6, "decode_context": 0.0}
        engine._info = msgspec.structs.replace(INFO, latency_coefficients=slow)
        for i in range(8):  # at once, 50 ms each
            engine.stream([EngineRequest(i, list(range(50 * i, 50 * i + 48)), 2)])
        await eventually(lambda: (found := engine.stats()) is not None and (found.num_desired_nodes or 0) >= 8)
        node.close()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()


class ScriptedLeadership:
    """It is elected when the test says so."""

    def __init__(self) -> None:
        self.is_leader = False
        self.elected = asyncio.Event()

    @property
    def leader(self) -> str:
        return "this one" if self.is_leader else "another one"

    async def keep(self, on_elected: Callable[[], None]) -> None:
        await self.elected.wait()
        self.is_leader = True
        on_elected()
        await asyncio.Event().wait()


async def test_who_is_elected_counts_at_once_and_nobody_else_says_it() -> None:
    leadership = ScriptedLeadership()
    door = FleetDoor("tcp://127.0.0.1:0", None)
    engine = FleetEngine(door, None, "fingerprint", Supervisor(), 60.0, 60.0, "advised", 1.0, leadership)
    starting = asyncio.create_task(engine.start())
    try:
        node = await ScriptedNode.come(engine)
        node.say_state()
        await eventually(lambda: engine.stats())
        slow = {"step_base": 0.001, "prefill_token": 0.001, "decode_seq": 1e-6, "decode_context": 0.0}
        engine._info = msgspec.structs.replace(INFO, latency_coefficients=slow)
        engine._size.note_others([(1.0, ArrivalNote(50, 2, 0, b""))])
        engine._size.desired = 7  # of a time when it led
        assert num_desired(engine) is None
        assert (engine.status().leader, engine.status().is_leader) == ("another one", False)
        leadership.elected.set()
        await eventually(lambda: num_desired(engine) == 2)
        assert (engine.status().leader, engine.status().is_leader) == ("this one", True)
        leadership.is_leader = False
        assert num_desired(engine) is None
        node.close()
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await engine.close()


def num_desired(engine: FleetEngine) -> int | None:
    stats = engine.stats()
    assert stats is not None
    return stats.num_desired_nodes


class ScriptedNode:
    """The other end of the fleet's port."""

    def __init__(self, connection: FrameSocket) -> None:
        self._socket = connection
        self.heard: list[FromGateway] = []
        self.is_over = False

    @classmethod
    async def come(cls, fleet: FleetEngine, name: str = "a", started: float = 1.0, **fields: str) -> ScriptedNode:
        node = cls(await dial(fleet._door.endpoint, None, GATEWAY))
        known = {"fingerprint": "fingerprint", "incarnation": f"{name}-{started}"} | fields
        node.say(NodeHello(name, started=started, **known))
        return node

    def say(self, message: fleet_wire.ToGateway) -> None:
        self._socket.send(fleet_wire.encode(message))

    def say_state(self, state: SeatState = SeatState.STARTING, **fields: object) -> None:
        self.say(NodeState(msgspec.structs.replace(EngineSeat(state), **fields)))

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)

    def has_heard(self, kind: type) -> bool:
        with suppress(ConnectionError):
            self.heard += map(fleet_wire.decode_from_gateway, self._socket.receive())
        return any(isinstance(message, kind) for message in self.heard)

    def is_hung_up_on(self) -> bool:
        try:
            self.heard += map(fleet_wire.decode_from_gateway, self._socket.receive())
        except ConnectionError:
            return True
        return False

    def close(self) -> None:
        self._socket.close()


class FakeNodeEngine:
    """An engine that listens on TCP, in a thread."""

    def __init__(self, folder: Path) -> None:
        self._link = GatewayLink(f"ipc://{folder / 'engine'}", NetworkOptions("tcp://127.0.0.1:0"))
        self.endpoint, self.incarnation = self._link.network_endpoint, "engine-1"
        self.stats_incarnation = self.incarnation
        self._steps = FakeSteps()
        self._is_over = False
        self.was_shut_down = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._is_over = True
        self._thread.join()
        self._link.close()

    def _run(self) -> None:
        while not self._is_over:
            self._link.wait(5)
            for gateway, message in self._link.receive():
                match message:
                    case wire.Hello():
                        self._link.send(gateway, wire.Ready(INFO, self.incarnation, self.endpoint))
                    case wire.Submit(request):
                        self._steps.add(request)
                    case wire.Abort(request_id):
                        self._link.send(gateway, wire.Deltas(self._steps.abort(request_id)))
                    case wire.Shutdown():
                        self.was_shut_down = True
                    case _:
                        pass
                if self._steps.num_open:
                    self._link.send(gateway, wire.Deltas(self._steps.step()))
                    while self._steps.num_open:
                        self._link.send(gateway, wire.Deltas(self._steps.step()))
                    self._link.send(gateway, wire.Stats(self._steps.stats(), self.stats_incarnation))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeNodeEngine]:
    engine = FakeNodeEngine(tmp_path)
    yield engine
    engine.close()


def ready(node: ScriptedNode, engine: FakeNodeEngine) -> None:
    node.say_state(SeatState.READY, incarnation=engine.incarnation, endpoint=engine.endpoint)


def request(request_id: int, **fields: object) -> EngineRequest:
    return EngineRequest(request_id, [*b"Hello"], 5, **fields)  # type: ignore[arg-type]


async def all_of(fleet: FleetEngine, *requests: EngineRequest) -> list[TokenDelta]:
    deltas: list[TokenDelta] = []
    with fleet.stream(requests) as stream:
        while arrived := await stream.receive():
            deltas += arrived
    return deltas


def tokens(deltas: list[TokenDelta], request_id: int) -> bytes:
    return bytes(token for delta in deltas if delta.request_id == request_id for token in delta.token_ids)


async def test_requests_go_to_the_engine_of_a_node(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    with pytest.raises(EngineDeadError, match="No node has come yet"):
        fleet.stream([request(1)])
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    deltas = await all_of(fleet, request(1), request(2))
    assert [tokens(deltas, i) for i in (1, 2)] == [b"Hello", b"Hello"]
    assert node.has_heard(Welcome)
    await eventually(lambda: node.has_heard(Heard))
    status = fleet.status().nodes[0]
    assert (status.name, status.condition, status.num_given, status.num_open) == ("a", "up", 2, 0)
    node.close()


async def test_what_went_to_the_only_node_is_known_when_another_comes(
    fleet: FleetEngine, engine: FakeNodeEngine
) -> None:
    """It is submitted first and noted then."""
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    stream = fleet.stream([request(1, session_id="s"), request(2, session_id="s")])
    assert fleet.status().nodes[0].num_given == 2
    assert not fleet._routing.num_routed
    await asyncio.sleep(0)
    assert sum(fleet._routing.num_routed.values()) == 1  # a connection
    assert fleet._routing.holders(Advisory("s", AdvisoryEvent.CANCEL)) == ["a"]
    stream.close()
    node.close()


async def test_requests_wait_for_a_node_and_not_for_ever(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    node.say(NodeState(EngineSeat(SeatState.DEAD), is_leaving=True))
    await eventually(lambda: not fleet.is_alive)
    deltas = await all_of(fleet, request(1))
    assert [delta.finish_reason for delta in deltas] == [FinishReason.ERROR]
    assert deltas[0].error is not None
    assert deltas[0].error.code is ErrorCode.OVERLOADED
    aborted = fleet.stream([request(2)])
    assert fleet.status().num_waiting == 1
    aborted.close()
    assert fleet.status().num_waiting == 0
    waiting = asyncio.create_task(all_of(fleet, request(3), request(4)))
    await eventually(lambda: fleet.status().num_waiting == 2)
    again = await ScriptedNode.come(fleet)
    ready(again, engine)
    assert tokens(await waiting, 4) == b"Hello"
    for end in (node, again):
        end.close()


async def test_an_advisory_whose_engine_dies_is_no_error(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    advised = asyncio.create_task(fleet.advise(Advisory("s", AdvisoryEvent.TYPING)))
    await asyncio.sleep(0)
    assert not advised.done()
    await asyncio.to_thread(engine.close)
    assert not (await advised).is_known
    node.close()


async def test_a_node_with_another_model_is_refused(fleet: FleetEngine) -> None:
    node = await ScriptedNode.come(fleet, fingerprint="another")
    await eventually(lambda: node.has_heard(Refused))
    assert not fleet.nodes
    node.close()


async def test_the_node_that_was_started_later_has_the_name(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    first = await ScriptedNode.come(fleet, started=2.0)
    ready(first, engine)
    await eventually(lambda: fleet.is_alive)
    older = await ScriptedNode.come(fleet, started=1.0)
    await eventually(lambda: older.has_heard(Superseded))
    older.say_state()
    await eventually(lambda: fleet.status().num_stale_incarnations == 1 or fleet._num_stale == 1)
    assert fleet.is_alive
    newer = await ScriptedNode.come(fleet, started=3.0)
    await eventually(lambda: first.has_heard(Superseded))
    assert fleet.is_alive  # until the newer one says that it has another engine
    newer.say_state(SeatState.STARTING)
    await eventually(lambda: engine.was_shut_down)
    assert not fleet.is_alive
    for end in (first, older, newer):
        end.close()


async def test_a_silent_node_is_suspect_then_gone(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    conditions: list[str] = []

    def is_gone() -> bool:
        conditions.append(fleet.nodes["a"].condition)
        return conditions[-1] == "gone"

    await eventually(is_gone, 30.0)
    assert list(dict.fromkeys(conditions)) == ["up", "suspect", "gone"]
    await eventually(node.is_hung_up_on)
    node.close()


async def test_stats_of_another_incarnation_are_dropped(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    engine.stats_incarnation = "engine-0"
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    await all_of(fleet, request(1))
    line = fleet.nodes["a"].engine
    assert line is not None
    await eventually(lambda: line.line.num_stale == 1)
    found = fleet.stats()
    assert found is not None
    assert (found.num_steps, found.num_stale_incarnations) == (0, 1)
    node.close()


async def test_an_engine_that_is_another_than_its_node_says_is_not_used(
    fleet: FleetEngine, engine: FakeNodeEngine
) -> None:
    node = await ScriptedNode.come(fleet)
    node.say_state(SeatState.READY, incarnation="engine-0", endpoint=engine.endpoint)
    await eventually(lambda: "another engine answers" in (fleet.nodes["a"].engine.death or "" if fleet.nodes else ""))
    assert not fleet.is_alive
    node.close()


async def test_an_operator_drains_a_node(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    for name, problem in (("b", "there is no node b"), ("a", "")):
        operator = ScriptedNode(await dial(fleet._door.endpoint, None, GATEWAY))
        operator.say(DrainNode(name, 5.0))
        await eventually(lambda of=operator: of.has_heard(Answered))  # type: ignore[misc]
        assert operator.heard == [Answered(problem)]
        operator.close()
    await eventually(lambda: node.has_heard(Drain))
    assert not fleet.is_alive
    node.close()


async def test_a_fence_names_the_incarnation(fleet: FleetEngine, engine: FakeNodeEngine) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    remote = fleet.nodes["a"].engine
    assert remote is not None
    remote._on_useless("The engine hung: it said nothing for 1 seconds.")
    await eventually(lambda: node.has_heard(Fence))
    assert Fence("engine-1", "The engine hung: it said nothing for 1 seconds.") in node.heard
    node.close()


async def test_who_says_nothing_or_nonsense_is_hung_up_on(
    fleet: FleetEngine, engine: FakeNodeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = await ScriptedNode.come(fleet)
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    chance = random.Random(7)
    num_sent = 0
    while num_sent < NUM_FRAMES:
        peer = ScriptedNode(await dial(fleet._door.endpoint, None, GATEWAY))
        for _ in range(chance.randrange(1, 30)):
            frame = bytearray(fleet_wire.encode(NodeState(EngineSeat(SeatState.READY, "i", "tcp://127.0.0.1:1"))))
            for _ in range(chance.randrange(1, 6)):
                frame[chance.randrange(len(frame))] = chance.randrange(256)
            num_sent += 1
            with suppress(ConnectionError):
                peer.send(bytes(frame))
        await eventually(peer.is_hung_up_on)
        peer.close()
        if num_sent % 5 == 0:
            ready(node, engine)
    monkeypatch.setattr(fleet_peer, "HELLO_SECONDS", 0.01)
    silent = ScriptedNode(await dial(fleet._door.endpoint, None, GATEWAY))
    await eventually(silent.is_hung_up_on)
    silent.close()
    large = ScriptedNode(await dial(fleet._door.endpoint, None, GATEWAY))
    large._socket._socket.sendall(struct.pack("<I", 256 << 20))
    await eventually(large.is_hung_up_on)
    large.close()
    ready(node, engine)
    await eventually(lambda: fleet.is_alive)
    assert tokens(await all_of(fleet, request(1)), 1) == b"Hello"
    assert list(fleet.nodes) == ["a"]
    node.close()


def some_stats(**changes: object) -> EngineStats:
    return msgspec.structs.replace(FakeSteps().stats(), **changes)


def test_what_engines_count_is_added_up_and_outlives_them() -> None:
    one = some_stats(num_output_tokens=5, num_free_units=10, class_seconds=[1.0, 2.0])
    other = some_stats(num_output_tokens=7, num_free_units=20, class_seconds=[0.5])
    found = sum_stats([one], [add_counters(add_counters(None, other), other)], [], 3, {})
    assert found is not None
    assert (found.num_output_tokens, found.num_free_units, found.num_stale_incarnations) == (19, 10, 3)
    assert found.class_seconds == [2.0, 2.0]
    assert sum_stats([], [], [], 0, {}) is None


def test_every_special_figure_is_one_of_the_engines() -> None:
    assert set(EngineStats.__struct_fields__) >= GAUGES | MEANS | LEAST | GREATEST | OF_GATEWAY


def chosen(
    routing: NodeRouting, asked: EngineRequest | Advisory, nodes: dict[str, EngineStats | None], *draining: str
) -> str | None:
    found = routing.choose(asked, nodes, draining)
    return None if found is None else found.node


def test_a_session_stays_where_it_is_and_equal_nodes_share_the_rest() -> None:
    routing = NodeRouting("advised", ManualClock())
    for name in ("a", "b"):
        routing.join(name, f"{name}1", INFO)
    nodes = {"a": None, "b": None}
    home = chosen(routing, request(1, session_id="s"), nodes)
    assert home is not None
    assert {chosen(routing, request(i, session_id="s"), nodes) for i in range(2, 6)} == {home}
    assert chosen(routing, Advisory("s", AdvisoryEvent.TYPING), nodes) == home
    assert {chosen(routing, request(i), nodes) for i in range(40)} == {"a", "b"}
    other = "a" if home == "b" else "b"
    assert chosen(routing, request(50, session_id="s"), {other: None}) == other
    assert chosen(routing, request(51), {}) is None
    assert sum(routing.num_routed.values()) == 46


def test_nothing_is_known_of_a_new_incarnation() -> None:
    routing = NodeRouting("sticky", ManualClock())
    for name in ("a", "b"):
        routing.join(name, f"{name}1", INFO)
    nodes = {"a": None, "b": None}
    home = chosen(routing, request(1, session_id="s"), nodes)
    assert home is not None
    routing.join(home, "another", INFO)
    assert not routing._table.session_nodes(session_digest("", "", "s"))


def test_what_an_engine_reports_moves_requests_elsewhere() -> None:
    routing = NodeRouting("least_loaded", ManualClock())
    for name in ("a", "b"):
        routing.join(name, f"{name}1", INFO)
    busy = some_stats(num_waiting=[50, 0, 0])
    assert {chosen(routing, request(i), {"a": busy, "b": None}) for i in range(10)} == {"b"}


def test_a_session_that_moves_brings_the_name_of_who_has_it() -> None:
    routing = NodeRouting("round_robin", ManualClock())
    speed = {"latency_form": "corrected", "latency_coefficients": {"step_base": 0.01, "prefill_token": 0.01}}
    info = msgspec.structs.replace(INFO, block_bytes=1 << 20, **speed)
    for name in ("a", "b"):
        routing.join(name, f"{name}1", info, name, gives_blocks=True)
    nodes: dict[str, EngineStats | None] = {"a": None, "b": None}
    asked = EngineRequest(1, [1] * 2000, 5, session_id="s")
    home = chosen(routing, asked, nodes)
    other = "b" if home == "a" else "a"
    assert routing.holders(Advisory("s", AdvisoryEvent.QUERY)) == [home]
    moved = [routing.choose(Advisory("s", AdvisoryEvent.TYPING), nodes) for _ in range(2)]
    assert {(found.node, found.source) for found in moved if found is not None} >= {(other, home)}
    assert set(routing.holders(Advisory("s", AdvisoryEvent.QUERY))) == {home, other}
    first = chosen(routing, EngineRequest(2, [3] * 2000, 5, session_id="t"), nodes) or ""
    left = "b" if first == "a" else "a"
    drained = routing.choose(EngineRequest(3, [3] * 2100, 5, session_id="t"), {left: None}, [first])
    assert drained is not None
    assert (drained.node, drained.source) == (left, first)
    assert routing.holders(Advisory("t", AdvisoryEvent.QUERY))[0] == left
    alone = routing.choose(EngineRequest(4, [2] * 2000, 5, session_id="new"), nodes)
    assert alone is not None
    assert alone.source is None

"""Nodes behind a gateway, all real: the acceptance tests of docs/fleet.md, over mutual TLS.

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it. Node b is behind a cable that is cut.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import psutil
import pytest

from fakes.eventually import wait_until
from fakes.real_fleet import RealFleet, Relay, Streams, ask, fleet, free_port, start
from schedcore.api.cluster_tls import GATEWAY, NODE, ClusterTls

WHOLE = os.environ.get("HOCKET_TEST_FLEET", "") == "1"
long = pytest.mark.skipif(not WHOLE, reason="HOCKET_TEST_FLEET=1: make test-fleet")
NUM_REQUESTS = 200  # of 20 in turn one time in four a draw between equals would give one node too many
ROUTING = ("--routing", "least_loaded")  # by cost, nodes that are equal on paper are not, on a busy machine
SECONDS = 60.0  # for what should take one or two: the machine may be busy


@pytest.fixture(scope="module")
def cables() -> Iterator[list[Relay]]:
    relays: list[Relay] = []
    yield relays
    for relay in relays:
        relay.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, cluster_dir: Path, cables: list[Relay]) -> Iterator[RealFleet]:
    folder = tmp_path_factory.mktemp("f")
    with fleet(folder, cluster_dir, "--engine-timeout-ms", "5000", "--fleet-wait-ms", "1500", *ROUTING) as running:
        running.add("a")
        host, port = running.address.split(":")
        engine_port = free_port()
        cables.append(Relay("127.0.0.1", 0, (host, int(port))))
        cables.append(Relay("127.0.0.2", engine_port, ("127.0.0.1", engine_port)))
        options = ("--listen", f"127.0.0.1:{engine_port}", "--advertise", "127.0.0.2")
        running.add("b", *options, address=f"127.0.0.1:{cables[0].port}")
        both_up(running)
        yield running


def whole(streams: Streams) -> list[str]:
    return ["".join(texts) for texts in streams.texts]


def undisturbed(running: RealFleet, number: int) -> list[str]:
    """What streams of 1,500 tokens say where nobody dies."""
    streams = Streams(running.server.url, number, 1500)
    streams.wait()
    return whole(streams)


def both_up(running: RealFleet) -> None:
    for name in ("a", "b"):
        running.wait_for(name, "up")


def test_requests_of_an_unmodified_client_are_shared_evenly(running: RealFleet) -> None:
    client = openai.OpenAI(base_url=f"{running.server.url}/v1", api_key="none", max_retries=0)

    def one(i: int) -> str | None:
        made = client.completions.create(model="demo", prompt=f"Number {i}", max_tokens=4, temperature=0, stream=True)
        reasons = [choice.finish_reason for chunk in made for choice in chunk.choices if choice.finish_reason]
        assert len(reasons) == 1
        return reasons[0]

    def given() -> list[int]:
        return [node["num_given"] for _, node in sorted(running.status().items())]

    with client:
        before = given()
        for i in range(NUM_REQUESTS // 2):  # one at a time: drawn among equals
            assert one(i) in ("length", "stop")
        halfway = given()
        with ThreadPoolExecutor(8) as pool:  # the slower one gets fewer
            assert len(list(pool.map(one, range(NUM_REQUESTS // 2)))) == NUM_REQUESTS // 2
        after = given()
    in_turns = [then - now for then, now in zip(halfway, before, strict=True)]
    assert sum(in_turns) == NUM_REQUESTS // 2
    assert max(in_turns) - min(in_turns) <= 0.1 * NUM_REQUESTS
    assert min(then - now for then, now in zip(after, halfway, strict=True)) > 0


def test_a_killed_node_manager_disturbs_nobody_and_the_next_one_adopts(running: RealFleet) -> None:
    node = running.nodes["a"]
    before = running.status()["a"]
    streams = Streams(running.server.url, 4, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    node.kill_manager()
    assert running.wait_for("a", "unmanaged", SECONDS)["incarnation"] == before["incarnation"]
    assert ask(running.server.url)[0] == 200
    node.start_manager()
    wait_until(lambda: running.status()["a"]["is_adopted"], SECONDS)
    after = running.wait_for("a", "up", SECONDS)
    streams.wait()
    assert streams.ends == [["length"]] * 4
    assert [after[key] for key in ("pid", "incarnation")] == [before[key] for key in ("pid", "incarnation")]


def test_a_gateway_imports_neither_ray_nor_torch(running: RealFleet) -> None:
    for process in (running.server.process, running.nodes["a"].manager):
        loaded = {Path(region.path).name for region in psutil.Process(process.pid).memory_maps() if region.path}
        assert not [name for name in loaded if "torch" in name or "_raylet" in name]


def test_who_is_no_node_is_refused_at_the_gateways_port(
    running: RealFleet, cluster_dir: Path, foreign_dir: Path
) -> None:
    host, port = running.address.split(":")
    for tls in (ClusterTls(foreign_dir, NODE), None):
        connection = socket.create_connection((host, int(port)), timeout=SECONDS)
        try:
            if tls is None:
                connection.sendall(struct.pack("<I", 256 << 20) + b"garbage")
                assert connection.recv(100)[:1] in (b"", b"\x15")  # hung up on, perhaps with an alert
            else:
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    connect_and_read(tls, connection)
        except ConnectionError:
            pass
        finally:
            connection.close()
    connection = socket.create_connection((host, int(port)), timeout=SECONDS)
    framed = ClusterTls(cluster_dir, NODE).wrap_dialed(connection, GATEWAY)
    framed.do_handshake()
    framed.sendall(struct.pack("<I", 256 << 20))
    assert framed.recv(1) == b""
    framed.close()
    assert "is refused" in running.log()
    assert {node["condition"] for node in running.status().values()} == {"up"}
    assert ask(running.server.url)[0] == 200


def connect_and_read(tls: ClusterTls, connection: socket.socket) -> None:
    with tls.wrap_dialed(connection, GATEWAY) as framed:
        framed.do_handshake()
        if not framed.recv(1):
            raise ConnectionResetError


@long
def test_the_streams_of_a_killed_engine_go_on_elsewhere_with_the_same_tokens(running: RealFleet) -> None:
    both_up(running)
    before = running.status()["a"]
    streams = Streams(running.server.url, 8, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    os.kill(running.nodes["a"].engine_pid, signal.SIGKILL)
    wait_until(lambda: running.status()["a"]["incarnation"] != before["incarnation"], SECONDS)
    streams.wait()
    assert streams.ends == [["length"]] * 8
    after = running.wait_for("a", "up")
    assert after["incarnation"] != before["incarnation"]
    assert after["num_restarts"] == before["num_restarts"] + 1
    assert after["last_death"]
    assert whole(streams) == undisturbed(running, 8)


@long
def test_a_cut_cable_is_noticed_and_the_node_comes_back_by_itself(running: RealFleet, cables: list[Relay]) -> None:
    both_up(running)
    before = running.status()["b"]
    streams = Streams(running.server.url, 4, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    for cable in cables:
        cable.cut()
    running.wait_for("b", "gone", SECONDS)
    assert ask(running.server.url)[0] == 200
    for cable in cables:
        cable.mend()
    after = running.wait_for("b", "up", SECONDS)
    streams.wait()
    assert streams.ends == [["length"]] * 4
    assert whole(streams) == undisturbed(running, 4)
    assert after["incarnation"] == before["incarnation"]  # its engine never stopped, and has aborted what was open
    wait_until(lambda: running.status()["b"]["num_running"] == 0, SECONDS)


@long
def test_a_stopped_engine_is_fenced_and_waking_it_does_no_harm(running: RealFleet) -> None:
    both_up(running)
    pid = running.nodes["a"].engine_pid
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "hung" in running.status()["a"]["last_death"], SECONDS)
    wait_until(lambda: not psutil.pid_exists(pid), SECONDS)
    assert running.wait_for("a", "up")["pid"] != pid
    assert all(ask(running.server.url)[0] == 200 for _ in range(4))


@long
def test_of_two_nodes_with_one_name_the_newer_has_it(running: RealFleet) -> None:
    both_up(running)
    older = running.nodes["a"]
    pid = older.engine_pid
    running.add("a", folder="a2")
    wait_until(lambda: older.manager.poll() is not None, SECONDS)
    assert older.manager.returncode == 3
    wait_until(lambda: not psutil.pid_exists(pid), SECONDS)
    assert running.wait_for("a", "up")["pid"] == running.nodes["a2"].engine_pid
    assert ask(running.server.url)[0] == 200


@long
def test_without_any_node_requests_wait_then_get_429_and_service_resumes(running: RealFleet) -> None:
    both_up(running)
    for name in ("a2", "b") if "a2" in running.nodes else ("a", "b"):
        node = running.nodes[name]
        pid = node.engine_pid
        node.kill_manager()
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: all(node["condition"] == "gone" for node in running.status().values()), SECONDS)
    status, body, headers = ask(running.server.url)
    assert status == 429, body
    assert int(headers["Retry-After"]) >= 1
    gateway = psutil.Process(running.server.process.pid)
    began, used = time.monotonic(), sum(gateway.cpu_times()[:2])
    time.sleep(2.0)
    assert sum(gateway.cpu_times()[:2]) - used < 0.1 * (time.monotonic() - began)
    running.nodes["b"].start_manager()
    running.wait_for("b", "up")
    assert ask(running.server.url)[0] == 200


@long
def test_a_drained_node_ends_nothing_and_leaves(running: RealFleet, cluster_dir: Path, tmp_path: Path) -> None:
    running.wait_for("b", "up")
    running.add("c")
    running.wait_for("c", "up")
    streams = Streams(running.server.url, 4, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    order = start(
        tmp_path / "log", "fleet", "drain", "c", "--gateway", running.address, "--cluster-dir", f"{cluster_dir}"
    )
    assert order.wait(SECONDS) == 0
    streams.wait()
    assert streams.ends == [["length"]] * 4
    assert running.nodes["c"].manager.wait(SECONDS) == 0
    running.wait_for("c", "gone", SECONDS)
    said = start(tmp_path / "status", "fleet", "status", "--url", running.server.url)
    assert said.wait(SECONDS) == 0
    assert "it has left" in (tmp_path / "status").read_text()

"""The port at which gateways on other machines come in: who may, who may not, and that nobody disturbs anybody.

HOCKET_TEST_FLEET_FRAMES: how many random frames are sent (make test-fleet: 100,000).
"""

from __future__ import annotations

import logging
import os
import random
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from schedcore.api import wire
from schedcore.api.cluster_tls import GATEWAY, NODE, OPERATOR, ClusterTls, ClusterTlsError
from schedcore.api.frame_socket import FrameSocket, network_address, network_endpoint
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest
from schedcore.serving import network_door
from schedcore.serving.gateway_link import GatewayLink
from schedcore.serving.network_door import NetworkOptions

NUM_FRAMES = int(os.environ.get("HOCKET_TEST_FLEET_FRAMES", "2000"))
DEADLINE_SECONDS = 30.0


@contextmanager
def listening(folder: Path, tls: ClusterTls | None) -> Iterator[GatewayLink]:
    link = GatewayLink(f"ipc://{folder / 'engine'}", NetworkOptions("tcp://127.0.0.1:0", tls))
    try:
        yield link
    finally:
        link.close()


@pytest.fixture
def link(tmp_path: Path, cluster_dir: Path) -> Iterator[GatewayLink]:
    with listening(tmp_path, ClusterTls(cluster_dir, NODE)) as link:
        yield link


Received = list[tuple[bytes, wire.ToEngine | None]]


def pump(link: GatewayLink, until: Callable[[Received], object]) -> Received:
    """What the engine's loop would see, until it has seen enough."""
    received: Received = []
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not until(received):
        assert time.monotonic() < deadline, received
        link.wait(5)
        received += link.receive()
    return received


def dial(link: GatewayLink) -> socket.socket:
    connection = socket.create_connection(network_address(link.network_endpoint))
    connection.setblocking(False)
    return connection


def come_in(link: GatewayLink, tls: ClusterTls) -> FrameSocket:
    """A gateway; raises ssl.SSLError where it is refused by then."""
    connection = tls.dialed(dial(link), NODE)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        try:
            connection.do_handshake()
            return FrameSocket(connection)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            link.wait(5)
            assert not [message for _, message in link.receive() if message is not None]
    raise AssertionError("no handshake")


def hears(received: Received, kind: type) -> bool:
    return any(isinstance(message, kind) for _, message in received)


def test_a_gateway_of_the_cluster_speaks_and_is_answered(link: GatewayLink, cluster_dir: Path) -> None:
    gateway = come_in(link, ClusterTls(cluster_dir, GATEWAY))
    large = EngineRequest(1, list(range(200_000)), 1)  # many TLS records
    gateway.send(wire.encode(wire.Submit(large)))
    received: Received = []

    def has_arrived(now: Received) -> bool:
        with suppress(ConnectionError):
            gateway.flush()
        return hears(now, wire.Submit)

    received = pump(link, has_arrived)
    name, message = next((name, message) for name, message in received if message is not None)
    assert message == wire.Submit(large)
    assert link.send(name, wire.Fatal("x" * 500_000))
    frames: list[bytes] = []
    while not frames:
        link.wait(1)
        list(link.receive())  # which goes on sending what did not fit
        frames = gateway.receive()
    assert wire.decode_to_gateway(frames[0]) == wire.Fatal("x" * 500_000)
    gateway.close()
    assert (name, None) in pump(link, lambda now: (name, None) in now)


def test_all_that_has_come_is_read_at_once(link: GatewayLink, cluster_dir: Path) -> None:
    """An engine reads once a step: it must not fall behind by a step per frame."""
    gateway = come_in(link, ClusterTls(cluster_dir, GATEWAY))
    num_frames = 300
    for i in range(num_frames):  # a record each
        gateway.send(wire.encode(wire.Submit(EngineRequest(i, list(range(64)), 1))))
    assert not gateway.has_unsent
    received, num_calls = [], 0
    while len(received) < num_frames:
        link.wait(5)
        received += [message for _, message in link.receive() if message is not None]
        num_calls += 1
    assert [message.request.request_id for message in received if isinstance(message, wire.Submit)] == list(range(300))
    assert num_calls <= 3
    gateway.close()


def test_who_has_no_certificate_of_a_gateway_is_refused_and_disturbs_nobody(
    link: GatewayLink, cluster_dir: Path, foreign_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = come_in(link, ClusterTls(cluster_dir, GATEWAY))
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname, anonymous.verify_mode = False, ssl.CERT_NONE
    connections: list[socket.socket] = [
        anonymous.wrap_socket(dial(link), do_handshake_on_connect=False),
        ClusterTls(foreign_dir, GATEWAY).wrap_dialed(dial(link), NODE),
        ClusterTls(cluster_dir, OPERATOR).wrap_dialed(dial(link), NODE),
        dial(link),
    ]
    plain = connections[-1]
    plain.sendall(struct.pack("<I", 7) + b"garbage" * 100)
    with caplog.at_level(logging.WARNING):
        for connection in connections[:-1]:
            assert isinstance(connection, ssl.SSLSocket)
            assert is_refused(link, connection)
    assert [r for r in caplog.records if "refused a connection from 127.0.0.1" in r.getMessage()].__len__() == 1
    gateway.send(wire.encode(wire.Ping()))
    assert hears(pump(link, lambda now: hears(now, wire.Ping)), wire.Ping)
    for connection in connections:
        connection.close()
    gateway.close()


def is_refused(link: GatewayLink, connection: ssl.SSLSocket) -> bool:
    """With TLS 1.3 a client learns what the other end thinks of it when it reads."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < deadline:
        link.wait(5)
        assert not [message for _, message in link.receive() if message is not None]
        try:
            connection.do_handshake()
            if not connection.recv(1):
                return True
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            continue
        except OSError:
            return True
    return False


def test_half_a_handshake_is_given_up(link: GatewayLink, cluster_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_door, "MAX_HANDSHAKES", 4)
    silent = [dial(link) for _ in range(12)]
    gateway = come_in(link, ClusterTls(cluster_dir, GATEWAY))
    assert link._door is not None
    assert len(link._door._handshakes) <= 4
    for connection in [*silent, gateway]:
        connection.close()


def test_a_frame_too_long_to_be_meant_is_refused_at_its_head(tmp_path: Path) -> None:
    with listening(tmp_path, None) as link:
        connection = dial(link)
        connection.sendall(struct.pack("<I", 256 << 20) + b"x" * 100)
        received = pump(link, lambda now: now)
        assert received[0][1] is None
        connection.close()


def random_frame(chance: random.Random) -> bytes:
    """Noise, and messages with something changed."""
    if chance.random() < 0.3:
        return chance.randbytes(chance.randrange(60))
    message = bytearray(
        wire.encode(
            chance.choice(
                [
                    wire.Hello(),
                    wire.Abort(chance.randrange(100)),
                    wire.Submit(EngineRequest(chance.randrange(9), [1, 2, 3], 4)),
                    wire.Advise(Advisory("s", AdvisoryEvent.TYPING)),
                ]
            )
        )
    )
    for _ in range(chance.randrange(4)):
        message[chance.randrange(len(message))] = chance.randrange(256)
    return bytes(message)


def test_random_frames_end_their_own_connection_only(tmp_path: Path) -> None:
    chance = random.Random(17)
    with listening(tmp_path, None) as link:
        good = FrameSocket(dial(link))
        num_sent = num_refused = 0
        logging.disable(logging.CRITICAL)  # one line per connection
        try:
            while num_sent < NUM_FRAMES:
                connection = FrameSocket(dial(link))
                batch = chance.randrange(1, 40)
                for _ in range(batch):
                    with suppress(ConnectionError):
                        connection.send(random_frame(chance))
                num_sent += batch
                link.wait(5)
                num_refused += sum(message is None for _, message in link.receive())
                connection.close()
        finally:
            logging.disable(logging.NOTSET)
        assert num_refused > NUM_FRAMES // 200
        good.send(wire.encode(wire.Ping()))
        assert hears(pump(link, lambda now: hears(now, wire.Ping)), wire.Ping)
        good.close()


def test_a_link_knows_for_how_long_nobody_has_been_connected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with listening(tmp_path, None) as link:
        assert link.alone_seconds() == 0
        connection = dial(link)
        link.wait(1000)
        assert not list(link.receive())
        now += 500
        assert link.alone_seconds() == 0
        connection.close()
        link.wait(1000)
        assert [message for _, message in link.receive()] == [None]
        now += 61
        assert link.alone_seconds() == 61


def test_missing_certificates_are_named(tmp_path: Path) -> None:
    with pytest.raises(ClusterTlsError, match="hocket fleet init"):
        ClusterTls(tmp_path, NODE)


@pytest.mark.parametrize("endpoint", ["tcp://:7000", "tcp://host", "ipc://x:1", "tcp://host:99999", "tcp://host:x"])
def test_a_wrong_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="an endpoint is tcp://host:port"):
        network_address(endpoint)


def test_addresses_are_read_as_they_are_written() -> None:
    assert network_address("tcp://[::1]:70") == ("::1", 70)
    assert network_endpoint("::1", 70) == "tcp://[::1]:70"
    assert network_endpoint("gw", 70) == "tcp://gw:70"

"""A storm of advisories that costs its machine as little as it can, and a sink that takes it for nothing.

A storm shares the cores with the server it blows against, so what it burns looks like the server's fault. It keeps
plain sockets in one loop and sleeps between slices: about a hundredth of a core at 10,000 advisories per second. The
sink is the cheapest server there can be: it leaves advisories in the sockets and answers REFUSALS_PER_SECOND with a
constant. Streams beside a storm against the sink show what the storm alone does to them.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from urllib.parse import urlsplit

SLICE_SECONDS = 0.01
VISIT_SECONDS = 0.1  # a connection writes this much of its share at once
REFUSALS_PER_SECOND = 20.0  # of the sink; what the gateway grants a tenant
BODY = b'{"session_id": "storm", "event": "typing", "eta_ms": 1000}'
REFUSAL = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 2\r\n\r\n{}"


def advisory(key: str, host: str) -> bytes:
    head = f"POST /v1/advisories HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n".encode() + BODY


class Sender:
    """One connection. What it is given and the socket does not take at once is written before anything else."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self._address = address
        self._request = request
        self._unsent = b""
        self.num_answers = 0
        self.num_connections = 0
        self._socket: socket.socket | None = None

    def offer(self, num_requests: int) -> None:
        self._read()
        if self._socket is None:
            self.connect()
        if self._socket is None or not num_requests:
            return
        data = self._unsent or self._request * num_requests
        try:
            self._unsent = data[self._socket.send(data) :]
        except BlockingIOError:  # not connected yet, or full
            self._unsent = data
        except OSError:
            self.close()

    def connect(self) -> None:
        self.close()
        self._socket = socket.socket()
        self._socket.setblocking(False)
        self.num_connections += 1
        with contextlib.suppress(BlockingIOError):
            self._socket.connect(self._address)

    def close(self) -> None:
        if self._socket is not None:
            self._read()
        if self._socket is not None:
            self._socket.close()
        self._socket, self._unsent = None, b""

    def _read(self) -> None:
        while self._socket is not None:
            try:
                data = self._socket.recv(2**16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            self.num_answers += data.count(b"HTTP/1.1 ")
            if not data:
                self._socket.close()
                self._socket, self._unsent = None, b""


@dataclass
class Storm:
    url: str
    keys: list[str]
    rate: float  # advisories per second, all together
    num_connections: int
    reconnects: bool = False
    num_offered: int = 0
    num_answers: int = 0
    cpu_seconds: float = 0.0
    _owed: float = field(default=0.0, init=False)

    def run(self, seconds: float, stop: Event | None = None) -> None:
        address = urlsplit(self.url)
        where = (address.hostname or "", address.port or 80)
        cpu, start = time.process_time(), time.perf_counter()
        senders = [
            Sender(where, advisory(self.keys[i % len(self.keys)], address.netloc)) for i in range(self.num_connections)
        ]
        turns, due = deque(senders), start
        while due < start + seconds and not (stop is not None and stop.is_set()):
            self._blow(turns)
            due += SLICE_SECONDS
            time.sleep(max(0.0, due - time.perf_counter()))
        for sender in senders:
            sender.close()
            self.num_answers += sender.num_answers
        self.cpu_seconds += time.process_time() - cpu

    def _blow(self, turns: deque[Sender]) -> None:
        """One slice's worth: from few connections in turn, or one advisory from each."""
        self._owed += self.rate * SLICE_SECONDS
        share = 1 if self.reconnects else max(1, round(self.rate * VISIT_SECONDS / self.num_connections))
        while self._owed >= share:
            sender = turns[0]
            turns.rotate(-1)
            if self.reconnects:
                sender.connect()
            sender.offer(share)
            self.num_offered += share
            self._owed -= share


def blow(storm: Storm, start: Event, stop: Event, counts: Queue[tuple[int, int, float]]) -> None:
    """In a process of its own, until told to stop: (offered, answered, seconds of CPU)."""
    start.set()
    storm.run(3600.0, stop)
    counts.put((storm.num_offered, storm.num_answers, storm.cpu_seconds))


def sink(listener: socket.socket, stop: Event) -> None:
    """In a process of its own, until told to stop."""
    listener.setblocking(False)
    connections: deque[socket.socket] = deque()
    while not stop.is_set():
        time.sleep(1.0 / REFUSALS_PER_SECOND)
        with contextlib.suppress(BlockingIOError):
            while True:
                connections.append(listener.accept()[0])
        if connections and not _refuse(connections[0]):
            connections.popleft().close()
        connections.rotate(-1)
    for connection in connections:
        connection.close()


def _refuse(connection: socket.socket) -> bool:
    """False if the connection is gone."""
    connection.setblocking(False)
    try:
        if not connection.recv(256):
            return False
        connection.send(REFUSAL)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True

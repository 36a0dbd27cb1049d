"""Where a client's uploads can be sent to nobody: a server that takes bodies at a rate and throws them away.

What a machine and a client's own process do while somebody uploads is there without it, and is measured with this one
in the server's place. The bytes are discarded by the kernel (MSG_TRUNC: Linux), in a process that stands back and
wakes as often as it has pieces to take.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import socket
import threading
import time
from types import TracebackType
from typing import Self

from bench.lib.load.stand_back import stand_back

PIECE_BYTES = 65536
ANSWER = b'{"id": "nobody"}'


def content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.split(b":")[1])
    return 0


class _Rate:
    """Of all connections together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._seconds_per_byte = 1 / bytes_per_second
        self._lock = threading.Lock()
        self._next = time.monotonic()

    def wait_for(self, num_bytes: int) -> None:
        with self._lock:
            self._next = max(self._next, time.monotonic()) + num_bytes * self._seconds_per_byte
            seconds = self._next - time.monotonic()
        time.sleep(max(0.0, seconds))


def _serve(connection: socket.socket, rate: _Rate) -> None:
    """Each request with a Content-Length, or without a body."""
    head = b""
    with contextlib.suppress(ConnectionError), connection:
        while piece := connection.recv(4096):
            head += piece
            if b"\r\n\r\n" not in head:
                continue
            left = content_length(head) - len(head.split(b"\r\n\r\n", 1)[1])
            while left > 0:
                num_bytes = len(connection.recv(min(left, PIECE_BYTES), socket.MSG_TRUNC))
                if num_bytes == 0:
                    return
                left -= num_bytes
                rate.wait_for(num_bytes)
            head = b""
            connection.sendall(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
                % (len(ANSWER), ANSWER)
            )


def _run(listener: socket.socket, bytes_per_second: float) -> None:
    stand_back()
    rate = _Rate(bytes_per_second)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_serve, args=(connection, rate), daemon=True).start()


class Sink:
    """Context manager: it listens inside."""

    def __init__(self, bytes_per_second: float) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.base_url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_run, args=(self._listener, bytes_per_second), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.join()
        self._listener.close()

"""A client that leaves the cores to the server while its answer streams in, and still knows when each piece came.

A reader that each token wakes takes the core from the gateway that has just sent it, in the middle of what the gateway
does next (docs/log/2026-11-23-long-gaps.md). This one looks once in LOOK_SECONDS; the times are the kernel's, of each
packet of the loopback device, read from a packet socket beside the connection. That needs CAP_NET_RAW.
"""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from urllib.parse import urlsplit

from bench.lib.load.http_stream import HttpResponse

LOOK_SECONDS = 0.02
_ETH_P_IP = 0x0800
_SO_ATTACH_FILTER, _SO_RCVBUFFORCE, _SO_TIMESTAMPNS = 26, 33, 35  # not named by the socket module
_BUFFER_BYTES = 8 * 2**20
_MAX_PACKET = 2**17
_NONE: Mapping[str, str] = MappingProxyType({})


def _only_to_port(port: int) -> bytes:
    """A classic BPF program: IPv4 and TCP to this port, whole; nothing else."""
    load_byte, load_header_length, load_half_indexed, jump_equal, give = 0x30, 0xB1, 0x48, 0x15, 0x06
    program = (
        (load_byte, 0, 0, 9),  # the protocol
        (jump_equal, 0, 4, socket.IPPROTO_TCP),
        (load_header_length, 0, 0, 0),
        (load_half_indexed, 0, 0, 2),  # the destination's port
        (jump_equal, 0, 1, port),
        (give, 0, 0, _MAX_PACKET),
        (give, 0, 0, 0),
    )
    return b"".join(struct.pack("HBBI", *instruction) for instruction in program)


class _Tap:
    """What the loopback device delivers to one port: payloads in order, each with its time of arrival."""

    def __init__(self, port: int) -> None:
        """Raises PermissionError without CAP_NET_RAW."""
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0)
        code = _only_to_port(port)
        buffer = ctypes.create_string_buffer(code, len(code))
        filter_program = struct.pack("HL", len(code) // 8, ctypes.addressof(buffer))
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filter_program)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        self._socket.bind(("lo", _ETH_P_IP))
        self._socket.setblocking(False)
        self._next: int | None = None  # sequence number

    def close(self) -> None:
        self._socket.close()

    def pieces(self) -> Iterator[tuple[float, bytes]]:
        """Those that have come, with times of time.perf_counter(). Raises RuntimeError if one is missing."""
        offset = time.perf_counter() - time.clock_gettime(time.CLOCK_REALTIME)
        while True:
            try:
                packet, ancillary, *_ = self._socket.recvmsg(_MAX_PACKET, 64)
            except BlockingIOError:
                return
            header = 4 * (packet[0] & 0xF)
            sequence = int.from_bytes(packet[header + 4 : header + 8], "big")
            payload = packet[header + 4 * (packet[header + 12] >> 4) : int.from_bytes(packet[2:4], "big") or None]
            if not payload:
                continue
            if self._next is not None and sequence != self._next:
                if (self._next - sequence) % 2**32 < 2**31:
                    continue  # sent twice
                raise RuntimeError("the packet socket has lost a packet")
            self._next = (sequence + len(payload)) % 2**32
            seconds, nanoseconds = struct.unpack("qq", ancillary[0][2])
            yield seconds + 1e-9 * nanoseconds + offset, payload


class PatientReader:
    """One connection to an IPv4 server on this machine; one request at a time."""

    def __init__(self, base_url: str, headers: Mapping[str, str] = _NONE) -> None:
        """Raises PermissionError without CAP_NET_RAW, OSError if nobody listens there."""
        address = urlsplit(base_url)
        self._head = f"Host: {address.netloc}\r\nContent-Type: application/json\r\n"
        self._head += "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._socket = socket.create_connection((address.hostname or "", address.port or 80))
        try:
            self._tap = _Tap(self._socket.getsockname()[1])
        except OSError:
            self._socket.close()
            raise

    def close(self) -> None:
        self._tap.close()
        self._socket.close()

    async def request(self, method: str, path: str, body: bytes) -> tuple[float, HttpResponse]:
        """When it was sent, and the response, complete.

        Raises ConnectionError if the connection ends before the response does, ValueError if it is not HTTP.
        """
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(body)}\r\n\r\n".encode()
        response, start = HttpResponse(), time.perf_counter()
        self._socket.setblocking(True)
        self._socket.sendall(head + body)
        self._socket.setblocking(False)
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            is_closed = self._throw_away()
            for moment, payload in self._tap.pieces():
                if response.add(moment, payload):
                    return start, response
            if is_closed:
                raise ConnectionError("connection ended before the response")

    def _throw_away(self) -> bool:
        """What the connection itself received; True once the server has closed it."""
        try:
            while self._socket.recv(2**20):
                pass
        except BlockingIOError:
            return False
        return True


def is_possible() -> bool:
    """May this process see the loopback device's packets?"""
    if sys.platform != "linux":
        return False
    try:
        socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0).close()
    except PermissionError:
        return False
    return True

"""Connections between machines on the event loop: dialed or accepted, with the handshake of TLS where there is one."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Collection

from schedcore.api.cluster_tls import ClusterTls, check_role
from schedcore.api.frame_socket import MAX_NETWORK_FRAME_BYTES, FrameSocket, network_address, prepare_network
from schedcore.api.tls_stream import TlsStream


async def dial(
    endpoint: str, tls: ClusterTls | None, peer_role: str, max_frame_bytes: int = MAX_NETWORK_FRAME_BYTES
) -> FrameSocket:
    """endpoint: tcp://host:port. Raises OSError; takes as long as the network: put a limit on it."""
    host, port = network_address(endpoint)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        prepare_network(connection)
        await loop.sock_connect(connection, address)
        if tls is None:
            return FrameSocket(connection, max_frame_bytes)
        stream = tls.dialed(connection, peer_role)
    except BaseException:
        connection.close()
        raise
    await _shake(stream)
    return FrameSocket(stream, max_frame_bytes)


async def welcome(
    connection: socket.socket, tls: ClusterTls | None, roles: Collection[str], max_frame_bytes: int
) -> tuple[FrameSocket, str | None]:
    """What somebody who has connected speaks by, and the role that was proven. Raises OSError."""
    try:
        prepare_network(connection)
        if tls is None:
            return FrameSocket(connection, max_frame_bytes), None
        stream = tls.accepted(connection)
    except BaseException:
        connection.close()
        raise
    await _shake(stream)
    try:
        return FrameSocket(stream, max_frame_bytes), check_role(stream, roles)
    except BaseException:
        stream.close()
        raise


async def _shake(connection: TlsStream) -> None:
    """Closes it if it fails."""
    try:
        while True:
            try:
                connection.do_handshake()
                return
            except ssl.SSLWantReadError:
                await _ready(connection, is_to_write=False)
            except ssl.SSLWantWriteError:
                await _ready(connection, is_to_write=True)
    except BaseException:
        connection.close()
        raise


async def _ready(connection: TlsStream, *, is_to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    descriptor = connection.fileno()
    (loop.add_writer if is_to_write else loop.add_reader)(descriptor, on_ready)
    try:
        await ready
    finally:
        (loop.remove_writer if is_to_write else loop.remove_reader)(descriptor)

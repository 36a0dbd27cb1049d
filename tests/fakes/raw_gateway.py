"""A gateway over a fake engine behind our own HTTP server, and clients that write bytes as they like."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

from aiohttp import web

from gateway.app import create_app
from gateway.http.connections import ConnectionLimits, Connections
from gateway.http.http_server import HttpServer
from gateway.services import Services

LIMITS = ConnectionLimits(max_connections=64, head_seconds=60.0, idle_seconds=60.0)


@dataclass
class RawClient:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes | str) -> None:
        self.writer.write(data.encode() if isinstance(data, str) else data)

    def end(self) -> None:
        """Nothing more will be sent."""
        self.writer.write_eof()

    async def response(self) -> tuple[int, bytes]:
        """Status and body of the next one; interim answers are passed over. Raises IncompleteReadError at the end."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if status < 200:
            return await self.response()
        lines = head.lower().split(b"\r\n")
        lengths = [int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length:")]
        return status, await self.reader.readexactly(lengths[0]) if lengths else b""

    async def rest(self) -> bytes:
        """Until the server closes."""
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@dataclass
class RawGateway:
    port: int
    connections: Connections
    services: Services
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self, sent: bytes | str = b"") -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        client.send(sent)
        return client


@asynccontextmanager
async def raw_gateway(services: Services, limits: ConnectionLimits = LIMITS) -> AsyncIterator[RawGateway]:
    runner = web.AppRunner(create_app(services), handler_cancellation=True, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        connections = Connections(limits, services.serving.metrics.connections, asyncio.get_running_loop().time)
        server = HttpServer(runner, listener, connections, root_path=services.config.root_path)
        gateway = RawGateway(listener.getsockname()[1], connections, services)
        try:
            async with services.supervisor.running("connection_sweep", connections.keep_sweeping):
                server.start()
                yield gateway
        finally:
            for client in gateway.clients:
                await client.close()
            await server.close()
            await runner.cleanup()


def get(path: str, *headers: str, version: str = "1.1") -> str:
    return "".join(f"{line}\r\n" for line in (f"GET {path} HTTP/{version}", "Host: localhost", *headers, ""))


def post(path: str, body: bytes | str, *headers: str, version: str = "1.1") -> bytes:
    data = body.encode() if isinstance(body, str) else body
    lines = (f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json", *headers)
    return "".join(f"{line}\r\n" for line in (*lines, f"Content-Length: {len(data)}", "")).encode() + data

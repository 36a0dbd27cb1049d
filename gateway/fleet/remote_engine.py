"""An engine on another machine: one connection to one incarnation of it. When either ends, it is dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.engine.engine_line import EngineLine
from gateway.fleet.network import dial
from schedcore.api import wire
from schedcore.api.cluster_tls import NODE, ClusterTls

CONNECT_SECONDS = 3.0  # until it is ready to answer, once its node says that it is


class RemoteEngine:
    def __init__(
        self,
        node: str,
        endpoint: str,
        incarnation: str,
        tls: ClusterTls | None,
        timeout_seconds: float,
        on_hung: Callable[[str], None],
        on_settled: Callable[[], None],
        hello: wire.Hello,
    ) -> None:
        """Dials at once. timeout_seconds: of silence, after which it has hung, and `on_hung(reason)` is called.

        on_settled: called when it is ready.
        """
        self.endpoint, self.incarnation = endpoint, incarnation
        self.line = EngineLine(timeout_seconds, self._on_useless, lambda: self.lose("its connection ended"))
        self._node, self._tls = node, tls
        self._on_hung, self._on_settled = on_hung, on_settled
        self._hello = hello
        self._connecting = asyncio.create_task(self._connect())

    @property
    def is_usable(self) -> bool:
        return self.line.is_alive

    @property
    def death(self) -> str | None:
        return self.line.death

    def lose(self, reason: str, *, is_expected: bool = False) -> None:
        """Whatever is open fails. Idempotent; the first reason counts."""
        self.line.die(f"The engine of node {self._node} is gone: {reason}.", is_expected=is_expected)
        self.line.detach()

    def shut_down(self, reason: str) -> None:
        """What is open fails here first, so that it can go on elsewhere; then the engine is told to exit."""
        self.line.die(f"The engine of node {self._node} is shut down: {reason}.")
        self.line.send(wire.Shutdown())
        self.line.detach()

    async def close(self) -> None:
        self._connecting.cancel()
        await asyncio.gather(self._connecting, return_exceptions=True)
        self.lose("this gateway shuts down", is_expected=True)

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                connection = await dial(self.endpoint, self._tls, NODE)
                if self.line.death is not None:  # lost meanwhile
                    connection.close()
                    return
                self.line.attach(connection, self._hello)
                await self.line.settled.wait()
        except (OSError, ValueError) as error:
            self.lose(f"it cannot be reached at {self.endpoint}: {error or type(error).__name__}")
            return
        if self.line.is_alive and self.line.incarnation != self.incarnation:
            self.line.num_stale += 1
            self.lose("another engine answers at its address")
        elif self.line.is_alive:
            self._on_settled()

    def _on_useless(self, reason: str) -> None:
        self.lose(reason.removesuffix("."))
        self._on_hung(reason)

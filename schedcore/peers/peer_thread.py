"""One peer, and the thread that speaks with it: one task after another, over a connection that opens when needed."""

from __future__ import annotations

import logging
import queue
import threading
from typing import Protocol

from schedcore.api.types import PeerSource
from schedcore.peers.block_transport import BlockTransport, PeerBlocks
from schedcore.peers.tcp_transport import PeerRefusedError

MAX_TASKS = 256  # that wait; further ones fail at once
IDLE_SECONDS = 60.0  # without a task, after which the connection is closed
CLOSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class PeerTask(Protocol):
    """Exactly one of the two is called, on the peer's thread; fail() also after a run() that raised OSError."""

    def run(self, peer: PeerBlocks) -> None: ...
    def fail(self, *, is_refused: bool) -> None:
        """The peer is gone, or its blocks are of no use here."""


class PeerThread:
    """put() and close() are one thread's."""

    def __init__(self, source: PeerSource, transport: BlockTransport) -> None:
        self.source = source
        self._transport = transport
        self._tasks: queue.Queue[PeerTask | None] = queue.Queue()
        self._blocks: PeerBlocks | None = None
        self._is_closed = False
        self._is_refused = False  # for good: an incarnation does not change its mind
        self._thread = threading.Thread(target=self._run, name="peer", daemon=True)
        self._thread.start()

    @property
    def is_busy(self) -> bool:
        return self._tasks.unfinished_tasks > 0

    def put(self, task: PeerTask) -> bool:
        """False if too many wait: nothing is called then."""
        if self._is_closed or self._tasks.qsize() >= MAX_TASKS:
            return False
        self._tasks.put(task)
        return True

    def close(self) -> None:
        """What is under way and what waits fails."""
        self._is_closed = True
        self._tasks.put(None)
        if (blocks := self._blocks) is not None:
            blocks.interrupt()
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                self._hang_up()
                continue
            if task is None:
                self._hang_up()
                return
            self._carry_out(task)
            self._tasks.task_done()

    def _carry_out(self, task: PeerTask) -> None:
        try:
            if self._is_closed or self._is_refused:
                raise ConnectionAbortedError("the peer is no longer asked")
            if self._blocks is None:
                self._blocks = self._transport.connect(self.source)
            task.run(self._blocks)
        except PeerRefusedError as error:
            logger.warning("the engine at %s gives no blocks: %s", self.source.endpoint, error)
            self._is_refused = True
            self._hang_up()
            task.fail(is_refused=True)
        except (OSError, ValueError) as error:
            if not self._is_closed and not self._is_refused:
                logger.warning("nothing comes from the engine at %s: %s", self.source.endpoint, error)
            self._hang_up()
            task.fail(is_refused=self._is_refused)
        except Exception:  # a mistake of ours: whoever waits for the task goes on without it
            logger.exception("what the engine at %s was asked has failed", self.source.endpoint)
            self._hang_up()
            task.fail(is_refused=False)

    def _hang_up(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
            self._blocks = None

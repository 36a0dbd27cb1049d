"""A thread that carries out moves in the order in which it gets them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

import torch

from worker.tiers.tier_moves import MoveEnd

CLOSE_SECONDS = 10.0  # that what was begun may take when the engine stops

Ends = queue.SimpleQueue[MoveEnd | BaseException]


class MoveThread:
    """Ends go to a queue, and so does what a task raises: that is the thread's last."""

    def __init__(self, name: str, ends: Ends) -> None:
        self._tasks: queue.SimpleQueue[Callable[[], Iterable[MoveEnd]] | None] = queue.SimpleQueue()
        self._ends = ends
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, task: Callable[[], Iterable[MoveEnd]]) -> None:
        self._tasks.put(task)

    def close(self) -> None:
        """Ends what was begun, then the thread."""
        self._tasks.put(None)
        self._thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        with torch.inference_mode():
            while (task := self._tasks.get()) is not None:
                try:
                    for end in task():
                        self._ends.put(end)
                except BaseException as error:
                    self._ends.put(error)
                    return

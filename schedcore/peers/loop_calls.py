"""Calls that other threads have the engine's loop make for them, between two steps: the core is the loop's alone."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopCalls:
    """call() is for any thread but the loop's, which calls serve() in every turn."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """wake: makes the loop take a turn soon; thread-safe."""
        self._wake = wake
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self._is_closed = False

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """What the function returns or raises. TimeoutError: the loop had no time for it, and will not make it."""
        future: Future[T] = Future()
        self._calls.put((function, future))
        if self._is_closed:
            self._cancel_all()
        self._wake()
        try:
            return future.result(seconds)
        except CancelledError:
            raise TimeoutError("the engine is closing") from None
        except TimeoutError:
            if future.cancel():
                raise
            return future.result()  # it is being made

    def post(self, function: Callable[[], object]) -> None:
        """The same, and nobody waits."""
        self._calls.put((function, Future()))
        self._wake()

    def serve(self) -> None:
        while not self._calls.empty():
            function, future = self._calls.get()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function())
            except Exception as error:  # whoever asked hears of it
                future.set_exception(error)

    def close(self) -> None:
        """Whoever waits stops waiting."""
        self._is_closed = True
        self._cancel_all()

    def _cancel_all(self) -> None:
        while not self._calls.empty():
            self._calls.get()[1].cancel()

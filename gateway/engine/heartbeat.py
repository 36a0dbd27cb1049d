"""Whether a peer that should answer still does. A process that hangs is alive to the system; only silence tells.

Silence is counted in turns of our own clock, not in seconds of the wall: while this process is itself stopped it counts
nothing, and it hears what has arrived meanwhile before it judges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

TURNS = 8  # of silence until the peer has hung


class Timer(Protocol):
    def cancel(self) -> None: ...


def _call_later(seconds: float, callback: Callable[[], None]) -> Timer:
    return asyncio.get_running_loop().call_later(seconds, callback)


class Heartbeat:
    """From `start()` to `stop()`: asks a silent peer, and says when it has been silent for too long."""

    def __init__(
        self,
        limit_seconds: float,
        listen: Callable[[], object],
        ask: Callable[[], None],
        on_silence: Callable[[], None],
        call_later: Callable[[float, Callable[[], None]], Timer] = _call_later,
    ) -> None:
        """limit_seconds: 0 for never. `listen` takes in what has arrived and calls `note()` for it."""
        self._turn_seconds = limit_seconds / TURNS
        self._listen, self._ask, self._on_silence = listen, ask, on_silence
        self._call_later = call_later
        self._num_silent = 0  # turns
        self._timer: Timer | None = None

    def start(self) -> None:
        if self._turn_seconds > 0 and self._timer is None:
            self._num_silent = 0
            self._wait()

    def stop(self) -> None:
        """Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def note(self) -> None:
        """The peer has said something."""
        self._num_silent = 0

    def _wait(self) -> None:
        self._timer = self._call_later(self._turn_seconds, self._turn)

    def _turn(self) -> None:
        self._num_silent += 1
        self._listen()
        if self._timer is None:  # what it said has ended all this
            return
        if self._num_silent > TURNS:
            self._timer = None
            self._on_silence()
            return
        if self._num_silent:
            self._ask()
        self._wait()

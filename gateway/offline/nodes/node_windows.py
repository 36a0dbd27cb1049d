"""How many rows each node of a fleet is given at a time, and which one gets the next.

A window is doubled when it is used up and nothing waits at the engine, and falls by a quarter of what waits there
beyond as much again as runs, or as ends in a second. So it follows the engine's speed and what online requests leave of
it; rows that nobody has taken yet can go to whoever is faster. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from schedcore.api.types import EngineStats, RequestClass

FIRST = 16  # rows, of a node of which nothing is known
LEAST = 4


@dataclass(slots=True, eq=False)
class Window:
    name: str | None  # of the node; None: wherever the engine sends them
    size: float  # rows
    looked_at: float = 0.0
    num_rows: int = 0  # there, or on their way
    num_tokens: int = 0  # of their prompts
    num_ended: int = 0  # since it was looked at
    paused_until: float = 0.0
    seen: EngineStats | None = None

    def start(self, num_tokens: int) -> None:
        """A row goes there."""
        self.num_rows += 1
        self.num_tokens += num_tokens

    def leave(self, num_tokens: int, *, has_ended: bool) -> None:
        """It has ended, or will run again."""
        self.num_rows -= 1
        self.num_tokens -= num_tokens
        self.num_ended += has_ended

    def look(self, stats: EngineStats | None, now: float, most: int) -> None:
        """stats: what the engine last said. most: that its size may be."""
        if stats is None or stats is self.seen or now <= self.looked_at:
            return
        rate = self.num_ended / (now - self.looked_at)
        self.seen, self.looked_at, self.num_ended = stats, now, 0
        num_waiting, num_running = stats.num_waiting[RequestClass.OFFLINE], stats.num_running[RequestClass.OFFLINE]
        num_beyond = num_waiting - max(LEAST, num_running, int(rate))
        if num_waiting == 0 and self.num_rows >= self.size:
            self.size = min(most, 2 * self.size)
        elif num_beyond > 0:
            self.size = max(min(LEAST, most), min(self.size, self.num_rows) - (num_beyond + 3) // 4)


class NodeWindows:
    """With fewer than two nodes there are none: rows go as other requests do."""

    def __init__(self, max_rows: int, max_tokens: int) -> None:
        """Of each node, at most: rows, and tokens of their prompts but for a single row."""
        self._max_rows, self._max_tokens = max_rows, max_tokens
        self._anywhere = Window(None, math.inf)
        self._windows: dict[str, Window] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._windows)

    def look(self, gauges: Mapping[str, EngineStats | None], now: float) -> bool:
        """gauges: of the nodes that take rows, what their engines last said. True: there are others than before."""
        names = tuple(gauges) if len(gauges) > 1 else ()
        has_changed = self._windows.keys() != set(names)
        if has_changed:
            first = min(FIRST, self._max_rows)
            self._windows = {name: self._windows.get(name) or Window(name, first, now) for name in names}
        for name, window in self._windows.items():
            window.look(gauges[name], now, self._max_rows)
        return has_changed

    def next(self, now: float) -> Window | None:
        """Where the next row goes: the emptiest; None: there is room nowhere."""
        if not self._windows:
            return self._anywhere
        free = [window for window in self._windows.values() if self._has_room(window, now)]
        return min(free, key=lambda window: window.num_rows / window.size, default=None)

    def has_idle(self, now: float) -> bool:
        """A node has nothing, and could."""
        return any(not window.num_rows and now >= window.paused_until for window in self._windows.values())

    def _has_room(self, window: Window, now: float) -> bool:
        if now < window.paused_until:
            return False
        if not window.num_rows:
            return True
        return window.num_rows < window.size and window.num_tokens < self._max_tokens

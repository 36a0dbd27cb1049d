"""When a dead engine is started again: sooner the rarer it dies, and not for ever. Pure, time is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW_SECONDS = 600.0  # in which restarts are counted
FIRST_DELAY_SECONDS = 0.25  # doubles with every other death within the last minute
MAX_DELAY_SECONDS = 30.0
_RECENT_SECONDS = 60.0


@dataclass(slots=True)
class RestartPolicy:
    max_restarts: int  # within the window; 0: never
    _deaths: deque[float] = field(default_factory=deque)

    def delay(self, now: float) -> float | None:
        """Seconds until the next start, for an engine that died now; None: it stays dead."""
        while self._deaths and self._deaths[0] <= now - WINDOW_SECONDS:
            self._deaths.popleft()
        if len(self._deaths) >= self.max_restarts:
            return None
        num_recent = sum(death > now - _RECENT_SECONDS for death in self._deaths)
        self._deaths.append(now)
        return min(MAX_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0**num_recent)

"""What is counted of connections."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class ConnectionMetrics:
    num_open: int = 0
    max_open: int = 0
    num_closed: Counter[str] = field(default_factory=Counter)  # by us and out of turn, by reason
    num_malformed: int = 0  # requests that were no HTTP

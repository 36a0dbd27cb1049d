"""What the runner of batches counts. `exposition.py` gives it names."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class OfflineMetrics:
    num_rows_ended: Counter[str] = field(default_factory=Counter)  # completed, failed; when committed
    num_rows_returned: Counter[str] = field(default_factory=Counter)  # from the engine, to run again later; by cause
    num_rows_promoted: int = 0
    num_batches_ended: Counter[str] = field(default_factory=Counter)  # by status
    num_pending_rows: int = 0  # of open batches, not in the engine
    num_engine_rows: int = 0
    num_engine_tokens: int = 0  # of their prompts, estimated
    num_uncommitted_rows: int = 0
    is_store_blocked: bool = False  # the disk is full or the database away: nothing new starts
    margin_seconds: dict[str, float] = field(default_factory=dict)  # by batch, those that are closest to being late


MAX_MARGINS = 20  # batches with a margin of their own

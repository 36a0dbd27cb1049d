"""What the runner of batches counts."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class OfflineMetrics:
    num_rows_ended: Counter[str] = field(default_factory=Counter)  # completed, failed; when committed
    num_rows_returned: Counter[str] = field(default_factory=Counter)  # from the engine, to run again later; by cause
    num_rows_promoted: int = 0
    num_results_refused: int = 0  # of rows that other gateways had been given
    num_gateways: int = 1  # that share the batches
    num_batches_ended: Counter[str] = field(default_factory=Counter)  # by status
    num_pending_rows: int = 0  # of open batches, not in the engine
    num_engine_rows: int = 0
    num_engine_tokens: int = 0  # of their prompts, estimated
    num_uncommitted_rows: int = 0
    num_stuck_rows: int = 0  # among them: the store refuses them, and their batches wait
    num_delayed_batches: int = 0  # that cannot be fed or ended at present, while others are
    is_store_blocked: bool = False  # the disk is full or the database away: nothing new starts
    clock_jump_seconds: float = 0.0  # that the system's clock is ahead of the one that batches go by
    num_batches_short_of_space: int = 0  # whose tenants store nearly all that they may: their rows wait
    num_open_batches: int = 0
    num_late_batches: int = 0  # among them, whose margin is negative
    least_margin_seconds: float = math.inf

"""What a store must hold, in plain Python; and crashes of a real one."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from gateway.offline.store.records import BatchStatus
from gateway.offline.store.store import OfflineStore


@dataclass
class TwinBatch:
    num_rows: int
    bad: frozenset[int]
    lines: dict[int, tuple[bool, bytes]] = field(default_factory=dict)  # finished: (is_error, line)
    unsure: dict[int, tuple[bool, bytes]] = field(default_factory=dict)  # handed in when the store crashed
    outcome: BatchStatus | None = None

    @property
    def pending(self) -> list[int]:
        return [i for i in range(self.num_rows) if i not in self.bad and i not in self.lines]

    def finish(self, index: int, is_error: bool, line: bytes) -> None:
        if index in self.pending and self.outcome is None:
            self.lines[index] = (is_error, line)

    @property
    def counts(self) -> tuple[int, int, int]:
        num_failed = len(self.bad) + sum(is_error for is_error, _ in self.lines.values())
        return self.num_rows, len(self.lines) + len(self.bad) - num_failed, num_failed

    def output(self) -> list[bytes]:
        return [line for _, (is_error, line) in sorted(self.lines.items()) if not is_error]


async def crash(store: OfflineStore) -> None:
    """What is not committed is lost; nothing is told, nothing is tidied up."""
    store._threads.close(drops_waiting=True)
    for task in [store._commits._task, *store._finalizing.values()]:
        if task is not None:
            task.cancel()
            with contextlib.suppress(BaseException):
                await task
    store._database.close()
    store._directory.close()

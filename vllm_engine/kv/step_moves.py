"""What the scheduler's side of the connector tells the workers' with a step, and what they say of it afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

Key = bytes  # 16 bytes: BlockKey of cpp/core/base/block_key.h


@dataclass(slots=True)
class StepMoves:
    """One block each. Saves read the device before the step writes anything, loads are there before it reads."""

    saves: list[tuple[int, int]] = field(default_factory=list)  # block of the device, slot of the host
    loads: list[tuple[int, int]] = field(default_factory=list)  # slot, block
    stores: list[tuple[int, int, Key]] = field(default_factory=list)  # move id, slot: host to disk
    fetches: list[tuple[int, int, Key]] = field(default_factory=list)  # move id, slot: disk to host

    def __bool__(self) -> bool:
        return bool(self.saves or self.loads or self.stores or self.fetches)


@dataclass(slots=True)
class TierReport:
    """Of one worker, or of several together (vLLM aggregates those of a step)."""

    num_ended: dict[int, int] = field(default_factory=dict)  # by move id: workers that are done with it
    failed: set[int] = field(default_factory=set)
    dropped: set[Key] = field(default_factory=set)  # by the disk, for others
    disk_bytes: int = 0
    opened: Opened | None = None  # in the first report of each worker

    def aggregate(self, other: TierReport) -> TierReport:
        ended = dict(self.num_ended)
        for move_id, num in other.num_ended.items():
            ended[move_id] = ended.get(move_id, 0) + num
        opened = self.opened or other.opened
        if self.opened is not None and other.opened is not None:
            opened = self.opened.aggregate(other.opened)
        return TierReport(
            ended,
            self.failed | other.failed,
            self.dropped | other.dropped,
            self.disk_bytes + other.disk_bytes,
            opened,
        )


@dataclass(slots=True)
class Opened:
    """What a worker found when it opened its tiers."""

    on_disk: set[Key]  # from an earlier life
    host_bytes_per_second: float  # to the device

    def aggregate(self, other: Opened) -> Opened:
        """A block that one worker lacks is there for nobody, and the slowest copy is waited for."""
        slowest = min(self.host_bytes_per_second, other.host_bytes_per_second)
        return Opened(self.on_disk & other.on_disk, slowest)

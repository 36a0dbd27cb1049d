"""The engine loop's side of the memory tiers: moves out of plans, their ends into the core."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from schedcore._core import BatchPlan, Scheduler
from schedcore.config import EngineConfig
from schedcore.types import NUM_TIERS
from worker.cache_fingerprint import cache_fingerprint
from worker.disk_tier import DiskTier
from worker.errors import MemoryPlanError
from worker.host_tier import HostTier, measure_bytes_per_second, num_slots
from worker.loaded_runner import LoadedRunner
from worker.tier_mover import TierMover

WAIT_SECONDS = 0.005  # for a move while there is nothing else to do; messages wait no longer
DISK_BYTES_PER_SECOND = 5e8  # what reading and checking is believed to reach: hashing takes a second per GB


class EngineTiers:
    def __init__(self, core: Scheduler, mover: TierMover) -> None:
        """Tells the core what the disk has from an earlier life."""
        self._core, self._mover = core, mover
        if mover.disk is not None:
            core.note_on_disk(_key_array(mover.disk.all_keys()))

    def begin(self, plan: BatchPlan) -> None:
        """Call before the plan is executed."""
        self._mover.begin(plan)

    def finish_step(self) -> None:
        """Call when the plan has been executed, before its tokens are used."""
        self._mover.finish_step()

    def report(self) -> None:
        """What has ended since the last call."""
        ends = self._mover.take_ends()
        if not ends:
            return
        done = [end.move_id for end in ends if end.is_done]
        self._core.complete_moves(done, [end.move_id for end in ends if not end.is_done])
        dropped = [key for end in ends for key in end.dropped or ()]
        if dropped:
            self._core.forget_on_disk(_key_array(dropped))

    def wait(self) -> bool:
        """For the next end, a little while. False if nothing is under way."""
        if not self._core.has_moves():
            return False
        self._mover.wait(WAIT_SECONDS)
        return True

    @property
    def disk_bytes(self) -> int:
        return 0 if self._mover.disk is None else self._mover.disk.num_bytes

    @property
    def max_disk_bytes(self) -> int:
        return 0 if self._mover.disk is None else self._mover.disk.max_bytes

    def close(self) -> None:
        self._mover.close()


def open_tiers(config: EngineConfig, loaded: LoadedRunner) -> TierMover | None:
    """None without a host tier. Raises WorkerError if it is too small, or the disk's folder cannot be used."""
    if config.host_cache_bytes == 0:
        return None
    units_per_block = loaded.memory.units_per_block
    num_blocks = num_slots(config.host_cache_bytes, loaded.pool, units_per_block)
    host = HostTier(loaded.pool, units_per_block, max(1, num_blocks))
    if num_blocks == 0:
        raise MemoryPlanError(f"host_cache_bytes {config.host_cache_bytes} is less than a block: {host.block_bytes}")
    disk = None
    if config.disk_cache_dir is not None:
        disk = DiskTier(Path(config.disk_cache_dir), host.block_bytes, config.disk_cache_bytes)
    return TierMover(loaded.pool, host, disk)


def core_settings(config: EngineConfig, loaded: LoadedRunner, mover: TierMover | None) -> dict[str, Any]:
    """Fields of SchedulerConfig."""
    if mover is None:
        return {}
    layout = {
        "dtype": loaded.dtype_name,
        "device": loaded.device.type,
        "block_size": config.block_size,
        "layers_per_unit": loaded.memory.layers_per_unit,
    }
    return {
        "num_host_blocks": mover.host.num_slots,
        "num_copy_blocks": loaded.pool.num_lane_blocks,
        "enable_disk": mover.disk is not None,
        "restore": config.restore,
        "overlap_restores": config.overlap_restores,
        "cache_fingerprint": cache_fingerprint(loaded.folder, layout),
    }


def core_estimates(loaded: LoadedRunner, mover: TierMover | None, host_bytes_per_second: float = 0.0) -> dict[str, Any]:
    """Fields of Estimates. host_bytes_per_second: as calibrated; 0: measured here."""
    if mover is None:
        return {}
    return {
        "host_bytes_per_second": host_bytes_per_second or measure_bytes_per_second(loaded.pool, mover.host),
        "disk_bytes_per_second": DISK_BYTES_PER_SECOND,
        "unit_bytes": mover.host.block_bytes / mover.host.units_per_block,
    }


def block_bytes(loaded: LoadedRunner) -> int:
    data = loaded.pool.data
    return data[0].numel() * data.element_size() * loaded.memory.units_per_block


def tier_bytes(tier_tokens: list[int], block_size: int, bytes_per_block: int) -> list[int]:
    """Tokens per tier come in complete blocks."""
    assert len(tier_tokens) == NUM_TIERS
    return [tokens // block_size * bytes_per_block for tokens in tier_tokens]


def _key_array(keys: list[bytes]) -> np.ndarray[tuple[int, int], np.dtype[np.uint64]]:
    return np.frombuffer(b"".join(keys), np.uint64).reshape(-1, 2)

"""The memory tiers that a configuration asks for, and what the core is told of them."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from torch import Tensor

from schedcore._core import Scheduler
from schedcore.api.config import EngineConfig
from schedcore.tiers.cache_fingerprint import cache_fingerprint
from schedcore.tiers.disk_tier import BYTES_PER_SECOND, DiskTier
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import MAX_NUM_SESSIONS, PARTS_PER_BOOK, SessionFiles
from worker.base.errors import MemoryPlanError
from worker.forms.layer_copies import make_copy_engine
from worker.process.host_size import host_cache_bytes
from worker.runner.loaded_runner import LoadedRunner
from worker.tiers.engine_sessions import BookedSessions, NoBook, Sessions
from worker.tiers.host_tier import HostTier, measure_bytes_per_second, num_slots, unit_bytes
from worker.tiers.tier_mover import TierMover

logger = logging.getLogger(__name__)


def open_tiers(config: EngineConfig, loaded: LoadedRunner) -> TierMover | None:
    """None without a host tier. Raises WorkerError if it is too small, or the disk's folder cannot be used."""
    pool_bytes = loaded.memory.num_units * unit_bytes(loaded.pool)
    num_bytes = host_cache_bytes(config, pool_bytes, is_cuda=loaded.pool.data.is_cuda)
    units_per_block = loaded.memory.units_per_block
    num_blocks = num_slots(num_bytes, loaded.pool, units_per_block)
    is_asked_for = bool(config.host_cache_bytes) or config.disk_cache_dir is not None
    if num_blocks == 0 and is_asked_for:
        least = units_per_block * unit_bytes(loaded.pool)
        raise MemoryPlanError(f"host_cache_bytes {num_bytes} is less than a block: {least}")
    if num_blocks == 0:
        return None
    host = HostTier(loaded.pool, units_per_block, num_blocks)
    disk = None
    if config.disk_cache_dir is not None:
        disk_bytes = config.disk_cache_bytes - config.disk_cache_bytes // PARTS_PER_BOOK
        disk = DiskTier(Path(config.disk_cache_dir), host.block_bytes, disk_bytes)
    if loaded.pool.num_lane_units > 0:
        loaded.pool.arrivals.copy_engine = make_copy_engine(loaded.pool, host)  # the mover closes it
    return TierMover(loaded.pool, host, disk)


def memory_to_fill(config: EngineConfig, loaded: LoadedRunner, mover: TierMover | None) -> list[Tensor]:
    """What will be written to sooner or later, on CPU: the cache, and the host tier if somebody asked for it."""
    if loaded.device.type != "cpu":
        return []
    if mover is None or not config.host_cache_bytes:
        return [loaded.pool.data]
    return [loaded.pool.data, mover.host.data]


def open_sessions(config: EngineConfig, mover: TierMover | None, core: Scheduler, fingerprint: str) -> Sessions:
    """The core knows the sessions of an earlier life then, if there is a disk tier. A book that fails is a warning."""
    if mover is None or mover.disk is None:
        return NoBook()
    folder = mover.disk.folder / "sessions"
    try:
        files = SessionFiles(folder, fingerprint, MAX_NUM_SESSIONS, config.disk_cache_bytes // PARTS_PER_BOOK)
    except OSError as error:
        logger.warning("sessions will not be known after a restart: %s cannot be used: %s", folder, error.strerror)
        return NoBook()
    return BookedSessions(core, SessionBook(files))


def keeps_sessions_only(config: EngineConfig) -> bool:
    """Whoever asks for a tier wants everything there, and uncached tokens may be anybody's."""
    is_asked_for = config.host_cache_bytes is not None or config.disk_cache_dir is not None
    return not is_asked_for and not config.partial_caching


def core_settings(
    config: EngineConfig, loaded: LoadedRunner, mover: TierMover | None, *, has_peers: bool
) -> dict[str, Any]:
    """Fields of SchedulerConfig."""
    if mover is None:
        return {}
    layout = {
        "dtype": loaded.cache_dtype_name,
        "device": loaded.device.type,
        "block_size": config.block_size,
        "layers_per_unit": loaded.memory.layers_per_unit,
    }
    if loaded.pool.int8_rows is not None:
        layout["int8_rows"] = True  # units are larger
    if config.quantization is not None:  # K and V are what other weights make of the same tokens
        layout["quantization"] = config.quantization
    return {
        "num_host_blocks": mover.host.num_slots,
        "num_copy_blocks": loaded.pool.num_lane_blocks,
        "enable_disk": mover.disk is not None,
        "restore": config.restore,
        "save_sessions_only": keeps_sessions_only(config),
        "overlap_restores": config.overlap_restores,
        "cache_fingerprint": cache_fingerprint(loaded.folder, layout, is_portable=has_peers),
    }


def core_estimates(loaded: LoadedRunner, mover: TierMover | None, host_bytes_per_second: float = 0.0) -> dict[str, Any]:
    """Fields of Estimates. host_bytes_per_second: as calibrated; 0: measured here."""
    if mover is None:
        return {}
    return {
        "host_bytes_per_second": host_bytes_per_second or measure_bytes_per_second(loaded.pool, mover.host),
        "disk_bytes_per_second": BYTES_PER_SECOND,
        "unit_bytes": mover.host.block_bytes / mover.host.units_per_block,
    }


def block_bytes(loaded: LoadedRunner) -> int:
    return unit_bytes(loaded.pool) * loaded.memory.units_per_block

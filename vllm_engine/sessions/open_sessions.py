"""The sessions that an engine keeps, by its configuration."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from schedcore.api.config import EngineConfig
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import MAX_NUM_SESSIONS, PARTS_PER_BOOK, SessionFiles
from vllm_engine.sessions.announcements import Announcements
from vllm_engine.sessions.device_cache import DeviceCache

logger = logging.getLogger(__name__)

OWN_ORDER = "SimpleCPUOffloadConnector"  # of vLLM's: it reads the list of free blocks, which we would replace


def open_sessions(core: Any, config: EngineConfig, clock: Callable[[], float]) -> Announcements | None:
    """None where there is no prefix cache that could keep anything. core: idle."""
    scheduler = core.scheduler
    if not scheduler.cache_config.enable_prefix_caching or type(scheduler.connector).__name__ == OWN_ORDER:
        return None
    cache = DeviceCache(core)
    return Announcements(cache, cache.keep_in_order(), clock, _open_book(config, scheduler.planner))


def _open_book(config: EngineConfig, planner: Any) -> SessionBook | None:
    """Beside a disk tier; one that fails is a warning."""
    if planner is None or config.disk_cache_dir is None:
        return None
    folder = Path(config.disk_cache_dir) / "sessions"
    try:
        files = SessionFiles(folder, planner.fingerprint, MAX_NUM_SESSIONS, config.disk_cache_bytes // PARTS_PER_BOOK)
    except OSError as error:
        logger.warning("sessions will not be known after a restart: %s cannot be used: %s", folder, error.strerror)
        return None
    return SessionBook(files)

"""What a server takes while it is soaked, sampled, and whether it takes more and more."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

MIB = 2**20
MIN_SAMPLES = 8

# What may be left over the window in which nothing is disturbed. Memory grows a little for a while: caches of the
# tokenizer, of templates, of the allocator. A leak of 1 kB per request shows after a quarter of an hour.
MAX_GROWTH = {
    "gateway_rss": 10 * MIB,
    "engine_rss": 16 * MIB,
    "gateway_descriptors": 16,
    "engine_descriptors": 8,
    "gateway_threads": 8,
    "engine_threads": 2,
    "data_bytes": 24 * MIB,  # input files of batches that run, and the database's log
    "log_bytes": 64 * 1024,  # without lines per request, and about slow callbacks
    "metrics_lines": 40,  # series of statuses that have not been seen before
}


@dataclass(frozen=True, slots=True)
class Sample:
    """At `at` seconds: bytes, and numbers of what the names say."""

    at: float
    gateway_rss: int
    engine_rss: int
    gateway_descriptors: int
    engine_descriptors: int
    gateway_threads: int
    engine_threads: int
    data_bytes: int
    log_bytes: int
    metrics_lines: int


_SLOW = "WARNING asyncio: Executing"  # asyncio's debug mode writes it where the machine is slow


@dataclass(frozen=True, slots=True)
class Growth:
    name: str
    first: float  # at the beginning of the window, median of three
    last: float
    slope_per_hour: float
    growth: float  # slope times the window
    limit: float

    @property
    def is_too_much(self) -> bool:
        return self.growth > self.limit


def slope(times: Sequence[float], values: Sequence[float]) -> float:
    """Per unit of time: the median of the slopes of all pairs (Theil and Sen), which outliers do not move."""
    slopes = [
        (values[j] - values[i]) / (times[j] - times[i])
        for i in range(len(times))
        for j in range(i + 1, len(times))
        if times[j] > times[i]
    ]
    return statistics.median(slopes)


def growths(samples: Sequence[Sample]) -> list[Growth]:
    """REQUIRES: at least MIN_SAMPLES samples, all of the same processes."""
    times = [sample.at for sample in samples]
    window = times[-1] - times[0]
    found = []
    for name, limit in MAX_GROWTH.items():
        values = [float(getattr(sample, name)) for sample in samples]
        per_second = slope(times, values)
        first, last = statistics.median(values[:3]), statistics.median(values[-3:])
        found.append(Growth(name, first, last, per_second * 3600, per_second * window, limit))
    return found


def take(at: float, gateway: psutil.Process, engine: psutil.Process, data: Path, log: Path, metrics: str) -> Sample:
    """Raises psutil.Error where a process has just ended."""
    return Sample(
        at=at,
        gateway_rss=gateway.memory_info().rss,
        engine_rss=engine.memory_info().rss,
        gateway_descriptors=gateway.num_fds(),
        engine_descriptors=engine.num_fds(),
        gateway_threads=gateway.num_threads(),
        engine_threads=engine.num_threads(),
        data_bytes=folder_bytes(data),
        log_bytes=sum(len(line) for line in log.read_text(errors="replace").splitlines() if _SLOW not in line),
        metrics_lines=metrics.count("\n"),
    )


def folder_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_blocks * 512 if path.is_file() else 0
        except FileNotFoundError:  # deleted meanwhile
            continue
    return total


# Gauges that are zero, or one, on a server that nobody uses.
ZERO = (
    "hocket_requests_running", "hocket_requests_waiting", "hocket_queue_tokens", "hocket_leases",
    "hocket_offline_rows", "hocket_offline_engine_tokens", "hocket_offline_batches", "hocket_offline_store_blocked",
    "hocket_sessions", 'hocket_cache_units{state="owned"}',
)  # fmt: skip
ONE = ("hocket_engine_up", "hocket_task_up")
_SERIES = re.compile(r"^(\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def restless(metrics: str) -> list[str]:
    """Series of a page of /metrics that are not as they are at rest; a name that is not there at all counts, too."""
    found, seen = [], set()
    for name, labels, value in _SERIES.findall(metrics):
        series = name + labels
        for names, rest in ((ZERO, 0.0), (ONE, 1.0)):
            if name in names or series in names:
                seen.add(name if name in names else series)
                if float(value) != rest:
                    found.append(f"{series} {value}")
    return found + [f"{name} is not there" for name in (*ZERO, *ONE) if name not in seen]


# What a server under asyncio's debug mode writes when something was forgotten: a task, an exception, a coroutine.
_FORGOTTEN = re.compile(
    r"Traceback \(most recent|ERROR asyncio|was never awaited|never retrieved|Task was destroyed|ResourceWarning"
    r"|Fatal Python error|CoreError"
)


def forgotten(log: str) -> list[str]:
    """Lines of the log that tell of an error nobody handled."""
    return [line for line in log.splitlines() if _FORGOTTEN.search(line)]

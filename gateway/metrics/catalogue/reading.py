"""What a scrape of `/metrics` looks at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gateway.metrics.advisory_metrics import AdvisoryMetrics
from gateway.metrics.metrics import SERVED_CLASSES, Metrics
from schedcore.api.types import EngineStats, RequestClass

NO_STATS = EngineStats(  # before the engine has spoken
    num_running=[0] * len(RequestClass),
    num_waiting=[0] * len(RequestClass),
    num_units=0,
    num_free_units=0,
    num_cached_units=0,
    num_steps=0,
    num_prompt_tokens=0,
    num_output_tokens=0,
    num_cached_prompt_tokens=0,
    num_queried_prompt_tokens=0,
    num_preemptions=0,
    num_evicted_blocks=0,
    num_finished=[],
    step_seconds=0.0,
    schedule_seconds=0.0,
    commit_seconds=0.0,
    execute_seconds=0.0,
)


class Engine(Protocol):
    @property
    def is_alive(self) -> bool: ...

    @property
    def num_restarts(self) -> int: ...

    def stats(self) -> EngineStats | None: ...


class Queue(Protocol):
    num_tokens: int


class Task(Protocol):
    name: str
    num_restarts: int

    @property
    def is_running(self) -> bool: ...


class Work(Protocol):
    """A pool."""

    num_refused: int
    num_dropped: int

    @property
    def num_jobs(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Sources:
    """The whole life of a server."""

    metrics: Metrics
    engine: Engine
    admissions: Mapping[RequestClass, Queue]
    advisories: AdvisoryMetrics
    tasks: Iterable[Task]
    text_work: Work
    model_name: str


@dataclass(frozen=True, slots=True)
class Reading:
    """One scrape: the engine is asked once."""

    sources: Sources
    stats: EngineStats

    @classmethod
    def of(cls, sources: Sources) -> Reading:
        return cls(sources, sources.engine.stats() or NO_STATS)

    @property
    def metrics(self) -> Metrics:
        return self.sources.metrics


def class_label(request_class: RequestClass) -> str:
    return request_class.name.lower()


SERVED_LABELS = {request_class: class_label(request_class) for request_class in SERVED_CLASSES}

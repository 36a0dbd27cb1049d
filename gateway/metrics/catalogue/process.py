"""Metrics of the gateway's process: connections, background tasks, work on texts."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind

_CLOSED = ("head_timeout", "idle_timeout", "stalled", "made_room", "refused")

PROCESS = Chapter(
    "The gateway's process",
    "`process_*` and `python_*` of the Prometheus client are there, too.",
    (
        Family(
            Kind.GAUGE, "hocket_connections", "Open connections of clients.", lambda r: r.metrics.connections.num_open
        ),
        Family(
            Kind.GAUGE, "hocket_max_connections", "How many there may be.", lambda r: r.metrics.connections.max_open
        ),
        Family(
            Kind.COUNTER,
            "hocket_connections_closed",
            "Connections that the server closed out of turn.",
            lambda r: {reason: r.metrics.connections.num_closed[reason] for reason in _CLOSED},
            ("reason",),
            f"{', '.join(f'`{reason}`' for reason in _CLOSED)}.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_malformed_requests",
            "Requests that were not HTTP.",
            lambda r: r.metrics.connections.num_malformed,
        ),
        Family(
            Kind.COUNTER,
            "hocket_task_restarts",
            "How often a background task ended unexpectedly and was started again.",
            lambda r: {task.name: task.num_restarts for task in r.sources.tasks},
            ("task",),
            "`offline_rows`, `batch_validation`, `offline_upkeep`, `batch_leases`, `webhook_delivery`, "
            "`connection_sweep`, `engine_watch`.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_task_up",
            "1 while a background task runs.",
            lambda r: {task.name: float(task.is_running) for task in r.sources.tasks},
            ("task",),
            "0 while it waits to be started again.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_text_jobs",
            "Work on texts beside the event loop: waiting or under way.",
            lambda r: r.sources.text_work.num_jobs,
            detail="Decoding, rendering, tokenising of what is long.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_text_jobs_refused",
            "Work on texts refused: its tenant had too much of it.",
            lambda r: r.sources.text_work.num_refused,
            detail="Answered 429.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_text_jobs_dropped",
            "Work on texts given up because its client went away.",
            lambda r: r.sources.text_work.num_dropped,
        ),
    ),
)

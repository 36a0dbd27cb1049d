"""Metrics of batches and their rows."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind

OFFLINE = Chapter(
    "Offline work",
    "Rows are rows of batches; flex requests are in the class `offline` too, and not among the rows. What is counted "
    "by class stands above.",
    (
        Family(
            Kind.GAUGE,
            "hocket_offline_rows",
            "Rows of open batches that have not ended.",
            lambda r: {
                "pending": r.metrics.offline.num_pending_rows,
                "engine": r.metrics.offline.num_engine_rows,
                "uncommitted": r.metrics.offline.num_uncommitted_rows,
                "stuck": r.metrics.offline.num_stuck_rows,
            },
            ("state",),
            "`pending` in the store, `engine` in the look-ahead (waiting or running there), `uncommitted` with a "
            "result that is not yet on the disk, `stuck` those among them that the database refuses.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_engine_tokens",
            "Prompt tokens, estimated, of the rows that the engine sees.",
            lambda r: r.metrics.offline.num_engine_tokens,
            detail="Bytes / 4: the pool's size.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_offline_rows_ended",
            "Rows whose results were committed.",
            lambda r: r.metrics.offline.num_rows_ended,
            ("outcome",),
            "`completed`, `failed`.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_offline_rows_returned",
            "Rows that left the engine to run again.",
            lambda r: r.metrics.offline.num_rows_returned,
            ("cause",),
            "`engine` (it died, was full or stopped), `fairness` (a tenant came), `cancelled`, `expired`, `shutdown`, "
            "`lease` (other gateways were given them), `node` (it is gone, or another one has nothing to do).",
        ),
        Family(
            Kind.COUNTER,
            "hocket_offline_results_refused",
            "Results that came after their rows had been given to another gateway.",
            lambda r: r.metrics.offline.num_results_refused,
            detail="With `--share-batches`: this one was silent for longer than `--batch-lease-ms`.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_gateways",
            "Gateways that share the batches, this one among them.",
            lambda r: r.metrics.offline.num_gateways,
            detail="With `--share-batches`; else 1.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_offline_rows_promoted",
            "Rows that went to the engine as online requests, so that their batch is done in time.",
            lambda r: r.metrics.offline.num_rows_promoted,
        ),
        Family(
            Kind.COUNTER,
            "hocket_offline_batches_ended",
            "Batches that ended.",
            lambda r: r.metrics.offline.num_batches_ended,
            ("status",),
            "`completed`, `expired`, `cancelled`.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_store_blocked",
            "1 while results cannot be committed and nothing new starts.",
            lambda r: float(r.metrics.offline.is_store_blocked),
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_clock_jump_seconds",
            "By how much the system's clock has jumped, and files and batches go by the time before; else 0.",
            lambda r: r.metrics.offline.clock_jump_seconds,
            detail="See [offline.md](offline.md#quotas-and-expiry).",
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_batches",
            "Open batches whose rows may run.",
            lambda r: {
                "open": r.metrics.offline.num_open_batches,
                "late": r.metrics.offline.num_late_batches,
                "delayed": r.metrics.offline.num_delayed_batches,
                "short_of_space": r.metrics.offline.num_batches_short_of_space,
            },
            ("state",),
            "`open` all, `late` with a negative margin, `delayed` those that cannot be read, fed, stored or ended at "
            "present, `short_of_space` those whose rows wait because their key stores nearly all that it may.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_offline_deadline_margin_seconds",
            "Time left in a batch's window less what the rest takes at its measured rate; the least of any batch.",
            lambda r: r.metrics.offline.least_margin_seconds,
            detail="The rate is an average over rows that ended with a half-life of a minute; infinite before there is "
            "one. Nobody's batch is named.",
        ),
    ),
)

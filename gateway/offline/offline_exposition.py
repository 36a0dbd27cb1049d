"""The offline metrics by name, for Prometheus. docs/metrics.md says what they mean."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gateway.offline.offline_metrics import OfflineMetrics


def offline_metrics(metrics: OfflineMetrics) -> Iterator[Metric]:
    rows = GaugeMetricFamily("hocket_offline_rows", "Rows of open batches that have not ended.", labels=["state"])
    rows.add_metric(["pending"], metrics.num_pending_rows)
    rows.add_metric(["engine"], metrics.num_engine_rows)
    rows.add_metric(["uncommitted"], metrics.num_uncommitted_rows)
    yield rows
    yield GaugeMetricFamily(
        "hocket_offline_engine_tokens",
        "Prompt tokens, estimated, of the rows that the engine sees.",
        value=metrics.num_engine_tokens,
    )
    yield _counters("rows_ended", "Rows whose results were committed.", "outcome", metrics.num_rows_ended)
    yield _counters("rows_returned", "Rows that left the engine to run again.", "cause", metrics.num_rows_returned)
    yield CounterMetricFamily(
        "hocket_offline_rows_promoted",
        "Rows that went to the engine as online requests, so that their batch is done in time.",
        value=metrics.num_rows_promoted,
    )
    yield _counters("batches_ended", "Batches that ended.", "status", metrics.num_batches_ended)
    yield GaugeMetricFamily(
        "hocket_offline_store_blocked",
        "1 while results cannot be committed and nothing new starts.",
        value=float(metrics.is_store_blocked),
    )
    margins = GaugeMetricFamily(
        "hocket_offline_deadline_margin_seconds",
        "Time left in a batch's window less what the rest takes at its measured rate; the batches with the least.",
        labels=["batch"],
    )
    for batch_id, margin in metrics.margin_seconds.items():
        margins.add_metric([batch_id], margin)
    yield margins


def _counters(name: str, text: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(f"hocket_offline_{name}", text, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family

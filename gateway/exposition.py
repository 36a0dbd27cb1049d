"""Metrics as Prometheus reads them: our own names, and the `vllm:` names that dashboards and routers know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from gateway.admission import Admission
from gateway.advisory_metrics import AdvisoryMetrics
from gateway.engine_client import EngineClient
from gateway.form_exposition import form_metrics
from gateway.metrics import SERVED_CLASSES, ClassMetrics, Histogram, Metrics
from gateway.offline.offline_exposition import offline_metrics
from gateway.tier_exposition import tier_metrics
from schedcore.types import EngineStats, RequestClass

_NO_STATS = EngineStats(
    num_running=[0] * len(RequestClass),
    num_waiting=[0] * len(RequestClass),
    num_waiting_tokens=0,
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
    step_time_error_ratio=0.0,
)

# name, help, value: totals since the engine started
_ENGINE_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("steps", "Steps of the engine.", lambda s: s.num_steps),
    ("step_seconds", "Wall time of steps.", lambda s: s.step_seconds),
    ("schedule_seconds", "Time in the core's schedule().", lambda s: s.schedule_seconds),
    ("commit_seconds", "Time in the core's commit().", lambda s: s.commit_seconds),
    ("core_seconds", "Time in the core: schedule and commit.", lambda s: s.schedule_seconds + s.commit_seconds),
    ("execute_seconds", "Time in the executor: the model.", lambda s: s.execute_seconds),
    (
        "prefix_cache_queried_tokens",
        "Prompt tokens looked up in the prefix cache.",
        lambda s: s.num_queried_prompt_tokens,
    ),
    ("prefix_cache_hit_tokens", "Prompt tokens found in the prefix cache.", lambda s: s.num_cached_prompt_tokens),
    ("preemptions", "Running requests that had to give their memory back.", lambda s: s.num_preemptions),
    ("evicted_blocks", "Cached blocks dropped for others.", lambda s: s.num_evicted_blocks),
)

_CLASS_COUNTERS: tuple[tuple[str, str, Callable[[ClassMetrics], float]], ...] = (
    ("prompt_tokens", "Prompt tokens of requests that started.", lambda m: m.num_prompt_tokens),
    ("cached_tokens", "Prompt tokens among them served from the prefix cache.", lambda m: m.num_cached_tokens),
    ("output_tokens", "Generated tokens.", lambda m: m.num_output_tokens),
    ("requests_refused", "Requests answered 429 by admission.", lambda m: m.num_refused),
)

_CLASS_HISTOGRAMS: tuple[tuple[str, str, Callable[[ClassMetrics], Histogram]], ...] = (
    ("ttft_seconds", "From arrival to the first token.", lambda m: m.ttft),
    ("itl_seconds", "Between two tokens of a choice.", lambda m: m.itl),
    ("tpot_seconds", "Mean time per output token after the first, per choice.", lambda m: m.tpot),
    ("e2e_seconds", "From arrival to the last token.", lambda m: m.e2e),
    ("request_prompt_tokens", "Prompt length.", lambda m: m.prompt_lengths),
    ("request_output_tokens", "Output length.", lambda m: m.output_lengths),
)

_VLLM_COUNTERS: tuple[tuple[str, str, Callable[[EngineStats], float]], ...] = (
    ("prefix_cache_queries", "Prompt tokens looked up.", lambda s: s.num_queried_prompt_tokens),
    ("prefix_cache_hits", "Prompt tokens found.", lambda s: s.num_cached_prompt_tokens),
    ("num_preemptions", "Preemptions.", lambda s: s.num_preemptions),
)

_VLLM_HISTOGRAMS: tuple[tuple[str, Callable[[ClassMetrics], Histogram]], ...] = (
    ("time_to_first_token_seconds", lambda m: m.ttft),
    ("inter_token_latency_seconds", lambda m: m.itl),
    ("time_per_output_token_seconds", lambda m: m.itl),  # the older name of the same
    ("request_time_per_output_token_seconds", lambda m: m.tpot),
    ("e2e_request_latency_seconds", lambda m: m.e2e),
    ("request_prompt_tokens", lambda m: m.prompt_lengths),
    ("request_generation_tokens", lambda m: m.output_lengths),
)


class Exposition(Collector):
    """Reads what is counted when it is scraped, and never before."""

    def __init__(
        self,
        metrics: Metrics,
        engine: EngineClient,
        admissions: dict[RequestClass, Admission],
        model_name: str,
        advisory_metrics: AdvisoryMetrics,
    ) -> None:
        self._metrics = metrics
        self._engine = engine
        self._admissions = admissions
        self._advisory_metrics = advisory_metrics
        self._vllm_labels = {"model_name": model_name, "engine": "0"}
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats() or _NO_STATS
        yield _gauge("hocket_engine_up", "1 if the engine is ready and answering.", float(self._engine.is_alive))
        yield CounterMetricFamily(
            "hocket_engine_restarts",
            "How often the engine died and was started again.",
            value=self._engine.num_restarts,
        )
        yield from self._engine_metrics(stats)
        yield from form_metrics(stats)
        yield from tier_metrics(stats)
        yield from self._class_metrics(stats)
        yield from self._advisory_metrics.collect()
        yield from self._responses()
        yield from offline_metrics(self._metrics.offline)
        yield from self._vllm_metrics(stats)

    def _engine_metrics(self, stats: EngineStats) -> Iterator[Metric]:
        for name, text, value in _ENGINE_COUNTERS:
            yield CounterMetricFamily(f"hocket_{name}", text, value=value(stats))
        yield _gauge("hocket_cache_usage_ratio", "Share of cache units that running requests hold.", _usage(stats))
        yield _gauge(
            "hocket_step_time_error_ratio",
            "How far off the predicted times of steps are: mean over recent steps that were not learned from.",
            stats.step_time_error_ratio,
        )
        yield CounterMetricFamily(
            "hocket_offline_only_step_seconds",
            "Time of steps with offline and without online tokens: idle time put to use.",
            value=stats.offline_only_seconds,
        )
        yield _per_class("class_step_seconds", "Time of steps, split by scheduled tokens.", stats.class_seconds)
        yield _per_class("class_preemptions", "Preemptions, by class of who gave way.", stats.num_preempted)
        units = GaugeMetricFamily("hocket_cache_units", "Units of the cache pool.", labels=["state"])
        units.add_metric(["free"], stats.num_free_units)
        units.add_metric(["cached"], stats.num_cached_units)
        units.add_metric(["owned"], stats.num_units - stats.num_free_units - stats.num_cached_units)
        yield units

    def _class_metrics(self, stats: EngineStats) -> Iterator[Metric]:
        for name, text, per_class in (
            ("requests_running", "Requests in the running batch.", stats.num_running),
            ("requests_waiting", "Requests waiting in the engine.", stats.num_waiting),
        ):
            gauge = GaugeMetricFamily(f"hocket_{name}", text, labels=["class"])
            for request_class in SERVED_CLASSES:
                gauge.add_metric([_label(request_class)], per_class[request_class])
            yield gauge
        queue = GaugeMetricFamily("hocket_queue_tokens", "Prompt tokens without a first token yet.", labels=["class"])
        for request_class, admission in self._admissions.items():
            queue.add_metric([_label(request_class)], admission.num_tokens)
        yield queue
        yield from self._recorded()

    def _recorded(self) -> Iterator[Metric]:
        classes = [(_label(request_class), m) for request_class, m in self._metrics.of_class.items()]
        for name, text, value in _CLASS_COUNTERS:
            counter = CounterMetricFamily(f"hocket_{name}", text, labels=["class"])
            for label, m in classes:
                counter.add_metric([label], value(m))
            yield counter
        for name, text, histogram in _CLASS_HISTOGRAMS:
            family = HistogramMetricFamily(f"hocket_{name}", text, labels=["class"])
            for label, m in classes:
                _add_histogram(family, [label], [histogram(m)])
            yield family
        finished = CounterMetricFamily("hocket_choices", "Choices that ended.", labels=["class", "finish_reason"])
        for label, m in classes:
            for reason, count in m.num_finished.items():
                finished.add_metric([label, reason], count)
        yield finished

    def _responses(self) -> Iterator[Metric]:
        responses = CounterMetricFamily("hocket_http_responses", "HTTP responses.", labels=["route", "status"])
        for (route, status), count in self._metrics.num_responses.items():
            responses.add_metric([route, str(status)], count)
        yield responses

    def _vllm_metrics(self, stats: EngineStats) -> Iterator[Metric]:
        labels, values = list(self._vllm_labels), list(self._vllm_labels.values())
        recorded = list(self._metrics.of_class.values())

        def gauge(name: str, text: str, value: float) -> Metric:
            family = GaugeMetricFamily(f"vllm:{name}", text, labels=labels)
            family.add_metric(values, value)
            return family

        def counter(name: str, text: str, value: float) -> Metric:
            family = CounterMetricFamily(f"vllm:{name}", text, labels=labels)
            family.add_metric(values, value)
            return family

        yield gauge("num_requests_running", "Requests in the running batch.", sum(stats.num_running))
        yield gauge("num_requests_waiting", "Requests waiting.", sum(stats.num_waiting))
        yield gauge("kv_cache_usage_perc", "Share of the cache in use, 1 is all.", _usage(stats))
        yield gauge("gpu_cache_usage_perc", "The older name of kv_cache_usage_perc.", _usage(stats))
        yield counter("prompt_tokens", "Prompt tokens.", sum(m.num_prompt_tokens for m in recorded))
        yield counter("generation_tokens", "Generated tokens.", sum(m.num_output_tokens for m in recorded))
        for name, text, value in _VLLM_COUNTERS:
            yield counter(name, text, value(stats))
        for name, histogram in _VLLM_HISTOGRAMS:
            family = HistogramMetricFamily(f"vllm:{name}", "See the hocket_ metrics.", labels=labels)
            _add_histogram(family, values, [histogram(m) for m in recorded])
            yield family
        yield self._vllm_success(labels, values)

    def _vllm_success(self, labels: list[str], values: list[str]) -> Metric:
        success = CounterMetricFamily("vllm:request_success", "Ended.", labels=[*labels, "finished_reason"])
        for reason in ("stop", "length", "abort"):
            count = sum(m.num_finished[reason] for m in self._metrics.of_class.values())
            success.add_metric([*values, reason], count)
        return success


def _per_class(name: str, text: str, values: Sequence[float]) -> Metric:
    family = CounterMetricFamily(f"hocket_{name}", text, labels=["class"])
    for request_class, value in zip(RequestClass, values, strict=False):
        family.add_metric([_label(request_class)], value)
    return family


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _label(request_class: RequestClass) -> str:
    return request_class.name.lower()


def _usage(stats: EngineStats) -> float:
    in_use = stats.num_units - stats.num_free_units - stats.num_cached_units
    return in_use / stats.num_units if stats.num_units else 0.0


def _add_histogram(family: HistogramMetricFamily, labels: list[str], parts: list[Histogram]) -> None:
    """The sum of `parts`, which have the same bounds."""
    counts = list(accumulate(map(sum, zip(*(part.counts for part in parts), strict=True))))
    bounds = [*map(str, parts[0].bounds), "+Inf"]
    family.add_metric(labels, list(zip(bounds, counts, strict=True)), sum_value=sum(part.sum for part in parts))

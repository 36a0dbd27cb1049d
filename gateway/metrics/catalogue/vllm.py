"""The `vllm:` names that dashboards and routers know, for the same numbers."""

from __future__ import annotations

from collections.abc import Callable

from gateway.metrics.catalogue.engine import used_ratio
from gateway.metrics.catalogue.family import Chapter, Family, Kind, Value
from gateway.metrics.catalogue.reading import Reading
from gateway.metrics.histogram import Histogram
from gateway.metrics.metrics import ClassMetrics

_LABELS = ("model_name", "engine")


def _family(kind: Kind, name: str, text: str, read: Callable[[Reading], Value]) -> Family:
    return Family(kind, f"vllm:{name}", text, lambda r: {(r.sources.model_name, "0"): read(r)}, _LABELS)


def _gauge(name: str, text: str, read: Callable[[Reading], float]) -> Family:
    return _family(Kind.GAUGE, name, text, read)


def _counter(name: str, text: str, read: Callable[[Reading], float]) -> Family:
    return _family(Kind.COUNTER, name, text, read)


def _histogram(name: str, of: str, read: Callable[[ClassMetrics], Histogram]) -> Family:
    """of: our name of the same."""

    def merged(reading: Reading) -> Histogram:
        return Histogram.sum_of([read(m) for m in reading.metrics.of_class.values()])

    return _family(Kind.HISTOGRAM, name, f"See {of}.", merged)


def _ended(reading: Reading) -> dict[tuple[str, str, str], float]:
    classes = reading.metrics.of_class.values()
    return {
        (reading.sources.model_name, "0", reason): sum(m.num_finished[reason] for m in classes)
        for reason in ("stop", "length", "abort")
    }


VLLM = Chapter(
    "Names that vLLM's dashboards know",
    "Of both classes together.",
    (
        _gauge("num_requests_running", "Requests in the running batch.", lambda r: sum(r.stats.num_running)),
        _gauge("num_requests_waiting", "Requests waiting.", lambda r: sum(r.stats.num_waiting)),
        _gauge("kv_cache_usage_perc", "Share of the cache in use, 1 is all.", lambda r: used_ratio(r.stats)),
        _gauge("gpu_cache_usage_perc", "The older name of kv_cache_usage_perc.", lambda r: used_ratio(r.stats)),
        _counter(
            "prompt_tokens",
            "Prompt tokens.",
            lambda r: sum(m.num_prompt_tokens for m in r.metrics.of_class.values()),
        ),
        _counter(
            "generation_tokens",
            "Generated tokens.",
            lambda r: sum(m.num_output_tokens for m in r.metrics.of_class.values()),
        ),
        _counter("prefix_cache_queries", "Prompt tokens looked up.", lambda r: r.stats.num_queried_prompt_tokens),
        _counter("prefix_cache_hits", "Prompt tokens found.", lambda r: r.stats.num_cached_prompt_tokens),
        _counter("num_preemptions", "Preemptions.", lambda r: r.stats.num_preemptions),
        _histogram("time_to_first_token_seconds", "hocket_ttft_seconds", lambda m: m.ttft),
        _histogram("inter_token_latency_seconds", "hocket_itl_seconds", lambda m: m.itl),
        _histogram("time_per_output_token_seconds", "hocket_itl_seconds", lambda m: m.itl),  # the older name
        _histogram("request_time_per_output_token_seconds", "hocket_tpot_seconds", lambda m: m.tpot),
        _histogram("e2e_request_latency_seconds", "hocket_e2e_seconds", lambda m: m.e2e),
        _histogram("request_prompt_tokens", "hocket_request_prompt_tokens", lambda m: m.prompt_lengths),
        _histogram("request_generation_tokens", "hocket_request_output_tokens", lambda m: m.output_lengths),
        Family(Kind.COUNTER, "vllm:request_success", "Ended.", _ended, (*_LABELS, "finished_reason")),
    ),
)

"""Metrics of requests, by class of traffic."""

from __future__ import annotations

from collections.abc import Callable

from gateway.metrics.catalogue.family import Chapter, Family, Kind, Value
from gateway.metrics.catalogue.reading import SERVED_LABELS, Reading
from gateway.metrics.metrics import ClassMetrics
from schedcore.api.types import RequestClass

_CAUSES = ("died", "hung", "moved")


def _by_class(read: Callable[[ClassMetrics], Value]) -> Callable[[Reading], dict[str, Value]]:
    return lambda r: {label: read(r.metrics.of_class[c]) for c, label in SERVED_LABELS.items()}


def _counter(name: str, text: str, read: Callable[[ClassMetrics], Value], detail: str = "") -> Family:
    return Family(Kind.COUNTER, name, text, _by_class(read), ("class",), detail)


def _histogram(name: str, text: str, read: Callable[[ClassMetrics], Value], detail: str = "") -> Family:
    return Family(Kind.HISTOGRAM, name, text, _by_class(read), ("class",), detail)


REQUESTS = Chapter(
    "Requests",
    "Rows of batches count like flex requests, in the class `offline`, when their results are committed; a row's time "
    "runs from its way to the engine. TTFT and ITL are of requests that somebody waits for. Offline tokens/s is the "
    'rate of `hocket_output_tokens_total{class="offline"}`.',
    (
        Family(
            Kind.GAUGE,
            "hocket_requests_running",
            "Requests in the running batch.",
            lambda r: {label: r.stats.num_running[c] for c, label in SERVED_LABELS.items()},
            ("class",),
        ),
        Family(
            Kind.GAUGE,
            "hocket_requests_waiting",
            "Requests waiting in the engine.",
            lambda r: {label: r.stats.num_waiting[c] for c, label in SERVED_LABELS.items()},
            ("class",),
            "Of the class `offline`: in its pool.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_queue_tokens",
            "Prompt tokens without a first token yet.",
            lambda r: {SERVED_LABELS[c]: queue.num_tokens for c, queue in r.sources.admissions.items()},
            ("class",),
        ),
        _counter("hocket_prompt_tokens", "Prompt tokens of requests that started.", lambda m: m.num_prompt_tokens),
        _counter(
            "hocket_cached_tokens",
            "Prompt tokens among them served from the prefix cache.",
            lambda m: m.num_cached_tokens,
        ),
        _counter("hocket_output_tokens", "Generated tokens.", lambda m: m.num_output_tokens),
        _counter("hocket_requests_refused", "Requests answered 429 by admission.", lambda m: m.num_refused),
        _histogram("hocket_ttft_seconds", "From arrival to the first token.", lambda m: m.ttft),
        _histogram("hocket_itl_seconds", "Between two tokens of a choice.", lambda m: m.itl),
        _histogram("hocket_tpot_seconds", "Mean time per output token after the first, per choice.", lambda m: m.tpot),
        _histogram("hocket_e2e_seconds", "From arrival to the last token.", lambda m: m.e2e),
        _histogram("hocket_request_prompt_tokens", "Prompt length.", lambda m: m.prompt_lengths),
        _histogram("hocket_request_output_tokens", "Output length.", lambda m: m.output_lengths),
        Family(
            Kind.COUNTER,
            "hocket_choices",
            "Choices that ended.",
            lambda r: {
                (SERVED_LABELS[c], reason): count
                for c, m in r.metrics.of_class.items()
                for reason, count in m.num_finished.items()
            },
            ("class", "finish_reason"),
        ),
        Family(
            Kind.COUNTER,
            "hocket_resumed_requests",
            "Requests that went on where they were after their engine's end.",
            lambda r: {cause: r.metrics.resumption.num_resumed[cause] for cause in _CAUSES},
            ("cause",),
            "Each choice is a request. `died`, `hung` and was killed, or `moved`: its node was drained. See "
            "`--resume-wait-ms`.",
        ),
        Family(
            Kind.HISTOGRAM,
            "hocket_resume_seconds",
            "From an engine's end to the next token of a request that went on.",
            lambda r: r.metrics.resumption.pauses,
        ),
        Family(
            Kind.COUNTER,
            "hocket_target_choices",
            "Choices with a target that ended, by whether they attained it.",
            lambda r: r.metrics.of_class[RequestClass.ONLINE].num_by_target,
            ("target", "outcome"),
            "`ttft`, `itl`, `tpot`, or `all` that the request had: `attained` or `missed`, as defined above, by the "
            "gateway's clock. Requests that failed have missed them; those refused by admission or aborted by their "
            "client are not counted.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_http_responses",
            "HTTP responses.",
            lambda r: {(route, str(status)): count for (route, status), count in r.metrics.num_responses.items()},
            ("route", "status"),
        ),
    ),
)

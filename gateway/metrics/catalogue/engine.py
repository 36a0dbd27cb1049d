"""Metrics of the engine: its steps, the core's decisions, the cache's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gateway.metrics.catalogue.family import Chapter, Family, Kind
from gateway.metrics.catalogue.reading import class_label
from schedcore.api.types import EngineStats, FinishReason, RequestClass


def _counter(name: str, text: str, read: Callable[[EngineStats], float], detail: str = "") -> Family:
    return Family(Kind.COUNTER, name, text, lambda r: read(r.stats), detail=detail)


def _by_class(values: Sequence[float]) -> dict[str, float]:
    return {class_label(c): value for c, value in zip(RequestClass, values, strict=False)}


def used_ratio(stats: EngineStats) -> float:
    """Of the cache's units, those that running requests hold."""
    return _num_owned(stats) / stats.num_units if stats.num_units else 0.0


def _num_owned(stats: EngineStats) -> int:
    return stats.num_units - stats.num_free_units - stats.num_cached_units


def _num_not_finite(stats: EngineStats) -> int:
    return sum(stats.num_finished[FinishReason.ERROR : FinishReason.ERROR + 1])  # the core knows no other error


ENGINE = Chapter(
    "The engine",
    "Counters begin again when the engine is started again.",
    (
        Family(
            Kind.GAUGE,
            "hocket_engine_up",
            "1 if the engine is ready and answering.",
            lambda r: float(r.sources.engine.is_alive),
        ),
        Family(
            Kind.COUNTER,
            "hocket_engine_restarts",
            "How often the engine died and was started again.",
            lambda r: r.sources.engine.num_restarts,
            detail="Also of one that hung. This one counts from the server's start.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_predicted_ttft_seconds",
            "Predicted time to the first token of an online request that came now, with a short prompt.",
            lambda r: r.stats.predicted_ttft_seconds,
            detail="Requests for which it would exceed `--max-ttft-ms` are refused.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_promised_itl_seconds",
            "Between two tokens of who reads along without a target, as steps are planned.",
            lambda r: r.stats.promised_itl_seconds,
            detail="`--max-decode-step-ms`, or twice a step of 32 decodes with 1,024 tokens each, as believed now. 0: "
            "nothing is known of step times, or vLLM is the engine.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_reader_margin_ratio",
            "By which steps beside such readers are planned shorter than that, so that 99 % of them keep it.",
            lambda r: r.stats.reader_margin,
        ),
        _counter("hocket_steps", "Steps of the engine.", lambda s: s.num_steps),
        _counter(
            "hocket_guessed_tokens",
            "Tokens computed before anybody knew that they come.",
            lambda s: s.num_guessed_tokens,
            "With `--speculation auto`.",
        ),
        _counter("hocket_right_guesses", "Of these, tokens that came.", lambda s: s.num_right_guesses),
        _counter(
            "hocket_guess_seconds",
            "Time in which a small model guessed, between steps.",
            lambda s: s.guess_seconds,
            "With `--speculative-model`.",
        ),
        _counter("hocket_step_seconds", "Wall time of steps.", lambda s: s.step_seconds),
        _counter("hocket_schedule_seconds", "Time in the core's schedule().", lambda s: s.schedule_seconds),
        _counter("hocket_commit_seconds", "Time in the core's commit().", lambda s: s.commit_seconds),
        _counter(
            "hocket_core_seconds",
            "Time in the core: schedule and commit.",
            lambda s: s.schedule_seconds + s.commit_seconds,
        ),
        _counter("hocket_execute_seconds", "Time in the executor: the model.", lambda s: s.execute_seconds),
        _counter(
            "hocket_prefix_cache_queried_tokens",
            "Prompt tokens looked up in the prefix cache.",
            lambda s: s.num_queried_prompt_tokens,
        ),
        _counter(
            "hocket_prefix_cache_hit_tokens",
            "Prompt tokens found in the prefix cache.",
            lambda s: s.num_cached_prompt_tokens,
        ),
        _counter(
            "hocket_preemptions", "Running requests that had to give their memory back.", lambda s: s.num_preemptions
        ),
        _counter(
            "hocket_requests_not_finite",
            "Requests that failed because the model computed numbers that are not finite for them.",
            _num_not_finite,
            "Check the checkpoint and its dtype.",
        ),
        _counter("hocket_evicted_blocks", "Cached blocks dropped for others.", lambda s: s.num_evicted_blocks),
        Family(
            Kind.GAUGE,
            "hocket_cache_usage_ratio",
            "Share of cache units that running requests hold.",
            lambda r: used_ratio(r.stats),
        ),
        Family(
            Kind.GAUGE,
            "hocket_step_time_error_ratio",
            "How far off the predicted times of steps are: mean over recent steps that were not learned from.",
            lambda r: r.stats.step_time_error_ratio,
        ),
        _counter(
            "hocket_offline_only_step_seconds",
            "Time of steps with offline and without online tokens: idle time put to use.",
            lambda s: s.offline_only_seconds,
        ),
        Family(
            Kind.COUNTER,
            "hocket_class_step_seconds",
            "Time of steps, split by scheduled tokens.",
            lambda r: _by_class(r.stats.class_seconds),
            ("class",),
            "From schedule to commit; `offline` over `hocket_step_seconds_total` is the share of offline work.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_class_preemptions",
            "Preemptions, by class of who gave way.",
            lambda r: _by_class(r.stats.num_preempted),
            ("class",),
            "Of `offline`: for online requests, or for older offline ones.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_cache_units",
            "Units of the cache pool.",
            lambda r: {
                "free": r.stats.num_free_units,
                "cached": r.stats.num_cached_units,
                "owned": _num_owned(r.stats),
            },
            ("state",),
        ),
    ),
)

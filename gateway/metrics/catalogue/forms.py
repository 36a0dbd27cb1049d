"""Metrics of the forms in which the device keeps tokens: K and V, hidden states, int8, or recomputed every time."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind
from schedcore._core import RatioReason
from schedcore.api.types import EngineStats

_KINDS = ("kv", "hidden", "int8")
_REASONS = tuple(reason.name.lower() for reason in RatioReason)
_CONVERSIONS = ("hidden_to_kv", "kv_to_uncached", "uncached_to_kv", "to_int8")


def _units(stats: EngineStats) -> dict[str, int]:
    return dict(zip(_KINDS, stats.num_kind_units or [0] * len(_KINDS), strict=True))


def _tokens(stats: EngineStats) -> dict[str, int]:
    kept = zip(_KINDS, stats.num_kind_tokens or [0] * len(_KINDS), strict=True)
    return {**dict(kept), "uncached": stats.num_uncached_tokens}


FORMS = Chapter(
    "Forms of cache",
    "[caching.md](caching.md) explains the forms.",
    (
        Family(
            Kind.GAUGE,
            "hocket_cache_tokens",
            "Tokens in device memory by kind, and those recomputed in every step.",
            lambda r: _tokens(r.stats),
            ("kind",),
            "As `kv`, as `hidden` states or as K and V in `int8`, of running requests and of the prefix cache; what "
            "several requests share counts once. `uncached`: tokens of running requests that are not there.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_cache_kind_units",
            "Units of the pool that blocks of the kind take.",
            lambda r: _units(r.stats),
            ("kind",),
            "Room for tokens to come included. Tokens over units is what a kind gains.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_cache_kind_usage_ratio",
            "Share of the pool that blocks of the kind take.",
            lambda r: {
                kind: num_units / r.stats.num_units if r.stats.num_units else 0.0
                for kind, num_units in _units(r.stats).items()
            },
            ("kind",),
            "With the free share they are 1.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_cache_conversions",
            "Running requests whose form changed.",
            lambda r: dict(zip(_CONVERSIONS, r.stats.num_conversions or [0] * len(_CONVERSIONS), strict=True)),
            ("change",),
            "`hidden_to_kv` by projection, `kv_to_uncached` some blocks were given up, `uncached_to_kv` some came "
            "back, `to_int8` in int8 until they end, since they were admitted or while they ran. From K and V to "
            "hidden states there is no way but to compute again: that is a preemption.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_solver_max_running",
            "Online requests that may be in memory for all to keep their targets: the b/r solver's b.",
            lambda r: 0 if r.stats.max_running is None else r.stats.max_running,
            detail="Of the last step, with `--partial-caching`; 0: no target limits it. Who runs already is not given "
            "up, and who starves comes in all the same.",
        ),
        Family(
            Kind.GAUGE,
            "hocket_solver_uncached_ratio",
            "Share of the running requests' own tokens that is recomputed: the b/r solver's r.",
            lambda r: r.stats.uncached_ratio,
            detail="Of the last step; with those who are to come in.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_solver_steps",
            "Steps by what the b/r solver said of r.",
            lambda r: dict(zip(_REASONS, r.stats.num_ratio_steps or [0] * len(_REASONS), strict=True)),
            ("reason",),
            "`recomputes`: r > 0. Otherwise why r is 0: `not_allowed` (no `--partial-caching`, or a policy without), "
            "`memory_suffices`, `unknown_times`, `others_give_way` (somebody lost memory in the step), "
            "`nobody_may_lack` (who is left out shares its first blocks, is late or is owed a whole place), "
            "`too_few_blocks` (what could be given up lets nobody in), `costs_more` (than who came in would bring), "
            "`targets` (the step would end after somebody's token is due).",
        ),
        Family(
            Kind.COUNTER,
            "hocket_uncached_tokens",
            "Uncached tokens, step by step: computed through all layers, or loaded from the host for most.",
            lambda r: {"compute": r.stats.num_recomputed_tokens, "host": r.stats.num_loaded_tokens},
            ("from",),
            "Once for every step that needs them; `host` went through the first few layers while K and V of the others "
            "were loaded.",
        ),
    ),
)

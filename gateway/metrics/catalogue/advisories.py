"""Metrics of advisories and of what came of them."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind

ADVISORIES = Chapter(
    "Advisories",
    "[advisories.md](advisories.md) explains them.",
    (
        Family(
            Kind.COUNTER,
            "hocket_advisories",
            "Advisories that were answered; deferred: coalesced with an earlier one, or the engine was busy.",
            lambda r: r.sources.advisories.num_advisories,
            ("event", "outcome"),
        ),
        Family(
            Kind.COUNTER,
            "hocket_advisories_refused",
            "Advisories answered 429.",
            lambda r: r.sources.advisories.num_refused,
            ("reason",),
            "By what the tenant had too much of, or `dropped`.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_announced_requests",
            "Requests announced by advisories. hit: came within the lease and found its cache; miss: came, and did "
            "not; expired: never came.",
            lambda r: {
                "hit": r.sources.advisories.num_hits,
                "miss": r.sources.advisories.num_misses,
                "expired": r.sources.advisories.num_expired,
            },
            ("result",),
        ),
        Family(
            Kind.COUNTER,
            "hocket_advisory_wasted_bytes",
            "Cache that leases held until they expired.",
            lambda r: r.sources.advisories.num_wasted_bytes,
        ),
        Family(
            Kind.HISTOGRAM,
            "hocket_advisory_lead_seconds",
            "From a session's first advisory to the request it announced.",
            lambda r: r.sources.advisories.lead_time,
        ),
    ),
)

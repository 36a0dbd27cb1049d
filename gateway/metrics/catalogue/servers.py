"""Metrics of servers that somebody else runs, behind this gateway (`--engine http://...`)."""

from __future__ import annotations

from gateway.metrics.catalogue.family import Chapter, Family, Kind
from gateway.metrics.catalogue.reading import SERVED_LABELS, Reading


def _requests(reading: Reading) -> dict[tuple[str, str], float]:
    return {
        (server.url, label): server.num_open[request_class]
        for server in reading.stats.servers
        for request_class, label in SERVED_LABELS.items()
    }


SERVERS = Chapter(
    "Servers behind this one",
    "With `--engine http://...` only: [vllm.md](vllm.md). Steps are not seen from outside, so metrics of them stay 0.",
    (
        Family(
            Kind.GAUGE,
            "hocket_server_up",
            "1 if the server is given requests.",
            lambda r: {server.url: float(server.is_usable) for server in r.stats.servers},
            ("server",),
            "`/health` says why one is not.",
        ),
        Family(Kind.GAUGE, "hocket_server_requests", "Requests at the server.", _requests, ("server", "class")),
        Family(
            Kind.GAUGE,
            "hocket_server_offline_window",
            "Offline requests that the server may have at a time.",
            lambda r: {server.url: float(server.offline_window) for server in r.stats.servers},
            ("server",),
            "It follows the server's queue and cache.",
        ),
        Family(
            Kind.COUNTER,
            "hocket_server_retries",
            "Requests that went to another server, since the first gave no token.",
            lambda r: r.stats.num_retries,
        ),
    ),
)

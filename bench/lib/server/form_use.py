"""In which forms a server kept tokens while a load ran, sampled from its /metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from bench.lib.server.server_process import ServerProcess

SAMPLE_SECONDS = 0.25
STORED = ("kv", "hidden", "int8")
KINDS = (*STORED, "uncached")


class FormUse(msgspec.Struct, frozen=True):
    """The largest of the samples; counts are of the run."""

    num_tokens: dict[str, float]  # by kind
    num_all_tokens: float  # at one time, stored
    num_running: float
    num_preemptions: float
    num_conversions: float


class FormSample(msgspec.Struct, frozen=True):
    """Tokens and requests at one time, counts since the server started."""

    num_tokens: dict[str, float]
    num_running: float
    num_preemptions: float
    num_conversions: float


def read_sample(metrics_text: str) -> FormSample:
    """What the page does not have is 0."""
    tokens, totals = dict.fromkeys(KINDS, 0.0), {"running": 0.0, "preemptions": 0.0, "conversions": 0.0}
    for family in text_string_to_metric_families(metrics_text):
        for sample in family.samples:
            match sample.name:
                case "hocket_cache_tokens":
                    tokens[sample.labels["kind"]] = sample.value
                case "hocket_requests_running":
                    totals["running"] += sample.value
                case "hocket_preemptions_total":
                    totals["preemptions"] += sample.value
                case "hocket_cache_conversions_total":
                    totals["conversions"] += sample.value
    return FormSample(tokens, totals["running"], totals["preemptions"], totals["conversions"])


def form_use(samples: Sequence[FormSample]) -> FormUse:
    """samples: at least one, in order of time."""
    first, last = samples[0], samples[-1]
    return FormUse(
        {kind: max(sample.num_tokens[kind] for sample in samples) for kind in KINDS},
        max(sum(sample.num_tokens[kind] for kind in STORED) for sample in samples),
        max(sample.num_running for sample in samples),
        last.num_preemptions - first.num_preemptions,
        last.num_conversions - first.num_conversions,
    )


async def watch(server: ServerProcess, samples: list[FormSample]) -> None:
    """Until cancelled."""
    while True:
        samples.append(read_sample(await asyncio.to_thread(server.metrics_text)))
        await asyncio.sleep(SAMPLE_SECONDS)

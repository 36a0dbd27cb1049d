"""How much of a step our scheduling core takes, read from the server's /metrics."""

from __future__ import annotations

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from bench.lib.load.load_report import ratio

NUM_STEPS = "hocket_steps_total"
STEP_SECONDS = "hocket_step_seconds_total"
CORE_SECONDS = "hocket_core_seconds_total"


class StepTime(msgspec.Struct, frozen=True):
    """Sums since the server started; the difference of two readings describes the time between them."""

    num_steps: float
    step_seconds: float  # whole steps: core, execution and what lies between
    core_seconds: float  # inside the core: schedule and commit

    def since(self, earlier: StepTime) -> StepTime:
        return StepTime(
            self.num_steps - earlier.num_steps,
            self.step_seconds - earlier.step_seconds,
            self.core_seconds - earlier.core_seconds,
        )

    @property
    def core_us_per_step(self) -> float:
        return ratio(self.core_seconds * 1e6, self.num_steps)

    @property
    def core_ratio(self) -> float:
        return ratio(self.core_seconds, self.step_seconds)


def read_step_time(metrics_text: str) -> StepTime | None:
    """None if the page has no such metrics, as a peer's has not."""
    families = text_string_to_metric_families(metrics_text)
    totals = {sample.name: sample.value for family in families for sample in family.samples}
    try:
        return StepTime(totals[NUM_STEPS], totals[STEP_SECONDS], totals[CORE_SECONDS])
    except KeyError:
        return None

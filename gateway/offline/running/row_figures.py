"""What a row's answer adds to the metrics of its class, so that rows count as requests, not only as tokens.

Recorded when the row's result is committed: a row that runs again after a crash counts once.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.generation.prepare import PreparedRequest
from gateway.metrics.metrics import ClassMetrics


@dataclass(frozen=True, slots=True)
class RowFigures:
    prompt_lengths: tuple[int, ...]  # tokens
    choices: tuple[tuple[str, int], ...]  # finish reason, output tokens
    seconds: float  # from the row's start to its last token

    @classmethod
    def of(cls, prepared: PreparedRequest, seconds: float) -> RowFigures:
        choices = tuple((choice.finish_reason or "", choice.num_tokens) for choice in prepared.choices)
        return cls(tuple(map(len, prepared.prompts)), choices, seconds)

    def record(self, metrics: ClassMetrics) -> None:
        for length in self.prompt_lengths:
            metrics.prompt_lengths.observe(length)
        for reason, num_tokens in self.choices:
            metrics.num_finished[reason] += 1
            metrics.output_lengths.observe(num_tokens)
            metrics.e2e.observe(self.seconds)

"""What a request adds to the metrics of its class, as it happens."""

from __future__ import annotations

from collections.abc import Callable

from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest
from gateway.generation.target_watch import TargetWatch
from gateway.metrics.metrics import ClassMetrics


class RequestFigures:
    """Observes an exchange."""

    def __init__(
        self,
        metrics: ClassMetrics,
        prepared: PreparedRequest,
        arrived_at: float,
        on_first_token: Callable[[Choice, float], None],
    ) -> None:
        """on_first_token(choice, now): once, for the first token of all."""
        self.first_token_at: float | None = None
        self._metrics = metrics
        self._prepared = prepared
        self._arrived_at = arrived_at
        self._on_first_token = on_first_token
        watch = TargetWatch(prepared, arrived_at)
        self._watch = watch if watch.names else None  # nothing per token where there are no targets

    def received(self, choice: Choice, num_tokens: int, now: float) -> None:
        metrics = self._metrics
        if self.first_token_at is None:
            self._start(choice, now)
        metrics.num_output_tokens += num_tokens
        if self._watch is not None:
            self._watch.received(choice, num_tokens, now)
        if choice.last_token_at is None:
            choice.first_token_at = now
            metrics.num_cached_tokens += choice.num_cached_tokens
        elif num_tokens:
            metrics.itl.observe((now - choice.last_token_at) / num_tokens, num_tokens)
        choice.last_token_at = now

    def finished(self, choice: Choice, now: float) -> None:
        metrics = self._metrics
        metrics.num_finished[choice.finish_reason or ""] += 1
        metrics.e2e.observe(now - self._arrived_at)
        metrics.output_lengths.observe(choice.num_tokens)
        if choice.num_tokens > 1 and choice.first_token_at is not None:
            metrics.tpot.observe((now - choice.first_token_at) / (choice.num_tokens - 1))
        if self._watch is not None:
            self._count_targets(self._watch.attained(choice))

    def given_up(self, *, has_failed: bool) -> None:
        """Whatever has not finished never will."""
        for choice in self._prepared.choices:
            if choice.finish_reason is None:
                self._metrics.num_finished["error" if has_failed else "abort"] += 1
                if has_failed and self._watch is not None:
                    self._count_targets(dict.fromkeys(self._watch.names, False))

    def _count_targets(self, attained: dict[str, bool]) -> None:
        for name, is_attained in attained.items():
            self._metrics.num_by_target[name, "attained" if is_attained else "missed"] += 1

    def _start(self, choice: Choice, now: float) -> None:
        self.first_token_at = now
        self._on_first_token(choice, now)
        self._metrics.ttft.observe(now - self._arrived_at)
        self._metrics.num_prompt_tokens += self._prepared.num_prompt_tokens
        for prompt in self._prepared.prompts:
            self._metrics.prompt_lengths.observe(len(prompt))

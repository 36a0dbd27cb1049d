"""Whether a request's choices attain its targets, as the gateway sees their tokens; docs/metrics.md defines it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gateway.generation.choice import Choice
from gateway.generation.prepare import PreparedRequest

TOKENS_PER_VIOLATION = 100  # one gap in so many may be too long, one token in so many too late: the P99 counts
ALL = "all"  # a choice attains what it was to see if it attains each of its targets


@dataclass(slots=True)
class _Course:
    """Of one choice."""

    first_due: float = math.inf  # when the first token was due or, without a TTFT target, came
    num_long_gaps: int = 0
    num_late_tokens: int = 0  # after the first, behind their cumulative deadlines


class TargetWatch:
    """Of a request that has targets."""

    def __init__(self, prepared: PreparedRequest, arrived_at: float) -> None:
        """arrived_at: seconds, on the clock that says when tokens came."""
        targets = prepared.profile.targets
        self._arrived_at = arrived_at
        self._seconds = {
            name: milliseconds / 1e3
            for name, milliseconds in (("ttft", targets.ttft_ms), ("itl", targets.itl_ms), ("tpot", targets.tpot_ms))
            if milliseconds is not None
        }
        self._itl = self._seconds.get("itl", math.inf)
        self._tpot = self._seconds.get("tpot", math.inf)
        self._courses = [_Course() for _ in prepared.choices]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the targets; none: there is nothing to watch."""
        return (*self._seconds, ALL) if self._seconds else ()

    def received(self, choice: Choice, num_tokens: int, now: float) -> None:
        """The choice has got so many tokens more; its last_token_at is still that of those before."""
        course = self._courses[choice.index]
        if choice.last_token_at is None:
            has_ttft = "ttft" in self._seconds
            course.first_due = self._arrived_at + self._seconds["ttft"] if has_ttft else now
        else:
            course.num_long_gaps += num_tokens > 0 and now - choice.last_token_at > self._itl
        if self._tpot < math.inf:
            first = max(1, choice.num_tokens - num_tokens)
            due = course.first_due
            course.num_late_tokens += sum(now > due + i * self._tpot for i in range(first, choice.num_tokens))

    def attained(self, choice: Choice) -> dict[str, bool]:
        """By name, of a choice that has all of its tokens."""
        course = self._courses[choice.index]
        num_forgiven = max(0, choice.num_tokens - 1) // TOKENS_PER_VIOLATION
        first_at = math.inf if choice.first_token_at is None else choice.first_token_at
        found = {
            "ttft": first_at - self._arrived_at <= self._seconds.get("ttft", math.inf),
            "itl": course.num_long_gaps <= num_forgiven,
            "tpot": course.num_late_tokens <= num_forgiven,
        }
        found[ALL] = all(found.values())
        return {name: found[name] for name in self.names}

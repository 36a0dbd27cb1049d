"""What was done to a server during a soak, how it ended, and what of that should not have been."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

MAX_TOLD = 50


@dataclass
class Trouble:
    """When we ourselves disturb the server: what fails then is no failure of its."""

    num_begun: int = 0
    is_now: bool = False

    def begin(self) -> None:
        self.num_begun += 1
        self.is_now = True

    def end(self) -> None:
        self.is_now = False

    def mark(self) -> int:
        """To be asked `since` of when the request has ended; -1: it began in trouble."""
        return -1 if self.is_now else self.num_begun

    def since(self, mark: int) -> bool:
        return mark != self.num_begun or self.is_now


@dataclass
class Ledger:
    trouble: Trouble = field(default_factory=Trouble)
    counts: Counter[str] = field(default_factory=Counter)  # by what was done and how it ended: "chat ok"
    failures: list[str] = field(default_factory=list)  # the first MAX_TOLD of those that are the server's
    num_failures: int = 0

    def count(self, what: str) -> None:
        self.counts[what] += 1

    def fail(self, why: str) -> None:
        self.num_failures += 1
        if len(self.failures) < MAX_TOLD:
            self.failures.append(why)

    def broken(self, what: str, why: str, mark: int) -> None:
        """It ended without the answer it should have; `mark` is trouble's from before it was sent."""
        if self.trouble.since(mark):
            self.count(f"{what} cut off by us")
        else:
            self.count(f"{what} failed")
            self.fail(f"{what}: {why}")

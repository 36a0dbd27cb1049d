"""Seam: the engine loop ↔ whoever guesses what requests will say next, before a step is planned."""

from __future__ import annotations

from typing import Protocol

from schedcore.api.types import EngineRequest


class Guesser(Protocol):
    @property
    def seconds(self) -> float:
        """That guessing has taken so far."""

    def add(self, request: EngineRequest) -> None:
        """The request was accepted by the core."""

    def remove(self, request_id: int) -> None:
        """The request is final; unknown ones are fine."""

    def guess(self) -> None:
        """Tells the core what comes next for whom it asks. REQUIRES: no plan is open."""


class NoGuesser:
    seconds = 0.0

    def add(self, request: EngineRequest) -> None:
        pass

    def remove(self, request_id: int) -> None:
        pass

    def guess(self) -> None:
        pass

"""What a streamed answer is made of, whatever its protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod

from gateway.generation.choice import Choice
from gateway.http.sse import error_event
from gateway.protocol.errors import ApiError


class EventStream(ABC):
    @abstractmethod
    def piece(self, choice: Choice, text: str) -> bytes:
        """What a choice's new text, and its end, look like; empty if there is nothing to show."""

    @abstractmethod
    def end(self) -> bytes:
        """After the last piece."""

    def failure(self, error: ApiError) -> bytes:
        """Instead of the rest."""
        return error_event(error)

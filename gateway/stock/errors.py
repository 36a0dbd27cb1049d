"""What may be wrong with a server that somebody else runs."""

from __future__ import annotations


class ServerLostError(Exception):
    """It is not there, or went away in the middle. Another may take the request if no token has come."""


class ServerBusyError(Exception):
    """It takes no more for now; another may."""

    def __init__(self, message: str, retry_seconds: float = 1.0) -> None:
        super().__init__(message)
        self.retry_seconds = retry_seconds


class RequestRefusedError(Exception):
    """It says that the request is wrong, as every other would."""


class UnusableServerError(Exception):
    """It answers, and cannot be served from: the message says what is missing."""

"""When to try again, and how long to wait before. No I/O, no clock; chance is an argument."""

from __future__ import annotations

import enum
import random
from collections.abc import Callable

import httpx

from ._exceptions import APIStatusError, HocketError, status_error, transport_error
from ._options import Options

INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 8.0
# A server that asks for more than this is better left alone; the caller learns `retry_after` and decides.
MAX_RETRY_AFTER_SECONDS = 60.0

# A read or write timeout is not among them: the server is at work or overloaded, and asking again makes it worse.
RETRIABLE_TRANSPORT = (httpx.ConnectTimeout, httpx.NetworkError, httpx.RemoteProtocolError)

Outcome = httpx.Response | httpx.RequestError


class Repeatable(enum.Enum):
    """Which failures of a call allow another attempt."""

    ALWAYS = enum.auto()  # all that may pass
    IF_REFUSED = enum.auto()  # only those after which the server has certainly done nothing
    NEVER = enum.auto()  # its body can be read only once


class Attempts:
    """Judges the outcomes of one call, attempt after attempt."""

    def __init__(
        self,
        options: Options,
        repeatable: Repeatable = Repeatable.ALWAYS,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._options = options
        self._repeatable = repeatable
        self._chance = chance  # uniform in [0, 1)
        self._num_retries = 0

    def judge(self, outcome: Outcome) -> httpx.Response | float:
        """The response, if it is a success; else the seconds to wait before the next attempt. Raises HocketError."""
        if isinstance(outcome, httpx.Response) and outcome.is_success:
            return outcome
        error = as_error(outcome, self._options)
        delay = self._delay(outcome, error)
        if delay is None:
            raise error from (outcome if isinstance(outcome, httpx.RequestError) else None)
        self._num_retries += 1
        return delay

    def _delay(self, outcome: Outcome, error: HocketError) -> float | None:
        if self._num_retries >= self._options.max_retries or not _is_retriable(outcome, self._repeatable):
            return None
        if isinstance(error, APIStatusError) and error.retry_after is not None:
            # Never earlier than asked; a little later, so that all who were refused do not return at once.
            late = error.retry_after * (1.0 + 0.25 * self._chance())
            return late if error.retry_after <= MAX_RETRY_AFTER_SECONDS else None
        delay = min(MAX_DELAY_SECONDS, INITIAL_DELAY_SECONDS * 2.0**self._num_retries)
        return delay * (0.5 + 0.5 * self._chance())


def as_error(outcome: Outcome, options: Options) -> HocketError:
    if isinstance(outcome, httpx.Response):
        return status_error(outcome)
    return transport_error(outcome, options.base_url)


def _is_retriable(outcome: Outcome, repeatable: Repeatable) -> bool:
    if repeatable is Repeatable.NEVER:
        return False
    if isinstance(outcome, httpx.Response):
        status = outcome.status_code
        if repeatable is Repeatable.IF_REFUSED:
            return status in (429, 503)
        return status in (408, 429) or (status >= 500 and status != 501)
    if repeatable is Repeatable.IF_REFUSED:
        return isinstance(outcome, httpx.ConnectError | httpx.ConnectTimeout)
    return isinstance(outcome, RETRIABLE_TRANSPORT)

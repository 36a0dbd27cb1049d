from __future__ import annotations

import httpx
import pytest

from hocket import APIConnectionError, APIStatusError, APITimeoutError, RateLimitError, ServerError
from hocket._exceptions import parse_retry_after
from hocket._options import Options
from hocket._retry import MAX_DELAY_SECONDS, Attempts

WITHOUT_JITTER = 1.0


def attempts(max_retries: int = 2, chance: float = WITHOUT_JITTER) -> Attempts:
    return Attempts(Options("http://server", max_retries=max_retries), chance=lambda: chance)


def response(status: int, **headers: str) -> httpx.Response:
    return httpx.Response(status, headers={name.replace("_", "-"): value for name, value in headers.items()})


def test_a_success_is_returned() -> None:
    success = response(200)
    assert attempts().judge(success) is success


def test_delays_double_up_to_a_limit() -> None:
    some = attempts(max_retries=7)
    assert [some.judge(response(500)) for _ in range(7)] == [0.5, 1, 2, 4, 8, MAX_DELAY_SECONDS, MAX_DELAY_SECONDS]


def test_jitter_takes_away_up_to_half() -> None:
    assert attempts(chance=0.0).judge(response(500)) == 0.25


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 529])
def test_status_that_may_pass_is_retried(status: int) -> None:
    assert isinstance(attempts().judge(response(status)), float)


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 413, 422, 501])
def test_status_that_will_not_pass_is_raised_at_once(status: int) -> None:
    with pytest.raises(APIStatusError) as raised:
        attempts().judge(response(status))
    assert raised.value.status_code == status


@pytest.mark.parametrize(
    "error",
    [httpx.ConnectError("refused"), httpx.ConnectTimeout(""), httpx.ReadError(""), httpx.RemoteProtocolError("")],
)
def test_a_connection_that_was_not_made_or_broke_is_retried(error: httpx.RequestError) -> None:
    assert isinstance(attempts().judge(error), float)


@pytest.mark.parametrize("error", [httpx.ReadTimeout(""), httpx.WriteTimeout(""), httpx.PoolTimeout("")])
def test_a_server_that_is_slow_is_not_asked_again(error: httpx.RequestError) -> None:
    with pytest.raises(APITimeoutError) as raised:
        attempts().judge(error)
    assert raised.value.__cause__ is error
    assert raised.value.phase in {"read", "write", "pool"}


def test_the_last_outcome_is_raised_when_retries_are_used_up() -> None:
    some = attempts(max_retries=1)
    some.judge(httpx.ConnectError("refused"))
    with pytest.raises(ServerError):
        some.judge(response(500))


def test_no_retries_means_one_attempt() -> None:
    with pytest.raises(APIConnectionError, match="cannot connect to http://server: refused"):
        attempts(max_retries=0).judge(httpx.ConnectError("refused"))


@pytest.mark.parametrize(("chance", "delay"), [(0.0, 4.0), (1.0, 5.0)])
def test_retry_after_is_honoured_never_earlier(chance: float, delay: float) -> None:
    assert attempts(chance=chance).judge(response(429, retry_after="4")) == delay


def test_a_longer_retry_after_than_a_minute_is_the_callers_decision() -> None:
    with pytest.raises(RateLimitError) as raised:
        attempts().judge(response(429, retry_after="61"))
    assert raised.value.retry_after == 61


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, None),
        ("", None),
        ("3", 3.0),
        ("0.5", 0.5),
        ("-1", 0.0),
        ("soon", None),
        ("nan", None),
        ("inf", None),
        ("Thu, 01 Jan 1970 00:01:40 GMT", 90.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_seconds_or_a_date(value: str | None, seconds: float | None) -> None:
    assert parse_retry_after(value, now=10.0) == seconds

from __future__ import annotations

import copy
import pickle

import httpx
import pytest

import hocket
from fakes.http_script import refusal
from hocket._exceptions import status_error, stream_error, transport_error


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (302, hocket.APIStatusError),
        (400, hocket.BadRequestError),
        (401, hocket.AuthenticationError),
        (403, hocket.PermissionDeniedError),
        (404, hocket.NotFoundError),
        (405, hocket.APIStatusError),
        (413, hocket.BadRequestError),
        (422, hocket.BadRequestError),
        (429, hocket.RateLimitError),
        (500, hocket.ServerError),
        (503, hocket.ServiceUnavailableError),
        (504, hocket.ServerError),
    ],
)
def test_each_status_has_its_exception(status: int, kind: type[Exception]) -> None:
    assert type(status_error(httpx.Response(status))) is kind


def test_what_the_server_said_is_kept() -> None:
    error = status_error(refusal(429, "queue full", retry_after="3", x_request_id="r-7"))
    assert (error.message, error.status_code, error.retry_after, error.request_id) == ("queue full", 429, 3.0, "r-7")
    assert (error.type, error.code, error.param) == ("invalid_request_error", "bad", "n")
    assert str(error) == "HTTP 429: queue full (param: n, code: bad, request: r-7)"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "Bad Gateway"),
        (b"upstream is down\n", "upstream is down"),
        (b'{"message": "flat", "code": 400}', "flat"),
        (b'{"detail": "elsewhere"}', "elsewhere"),
        (b'{"error": "just text"}', "just text"),
        (b'{"error": null}', "Bad Gateway"),
        (b"[1]", "[1]"),
        (b"\xff\xfe", "\ufffd\ufffd"),
    ],
)
def test_bodies_of_proxies_and_other_servers_are_understood_too(body: bytes, message: str) -> None:
    assert status_error(httpx.Response(502, content=body)).message == message


def test_a_page_of_html_is_cut() -> None:
    assert len(status_error(httpx.Response(502, text="x" * 5000)).message) == 200


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (httpx.ConnectError("refused"), hocket.APIConnectionError, "cannot connect to http://s: refused"),
        (httpx.ReadError(""), hocket.APIConnectionError, "the connection to http://s broke: ReadError"),
        (httpx.ReadTimeout(""), hocket.APITimeoutError, "http://s: read timed out"),
        (httpx.PoolTimeout(""), hocket.APITimeoutError, "http://s: pool timed out"),
    ],
)
def test_the_network_is_described(error: httpx.RequestError, kind: type[Exception], message: str) -> None:
    described = transport_error(error, "http://s")
    assert type(described) is kind
    assert str(described) == message


@pytest.mark.parametrize(
    "error",
    [
        status_error(refusal(429, retry_after="3")),
        stream_error({"error": {"message": "engine died", "code": "engine_dead"}}, "r-7"),
        transport_error(httpx.ReadTimeout(""), "http://s"),
    ],
)
def test_exceptions_survive_the_way_between_processes(error: hocket.HocketError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert (str(other), vars(other)) == (str(error), vars(error))

"""Bad input against the whole server: the right status, OpenAI's error shape naming the parameter; it goes on."""

from __future__ import annotations

import httpx
import pytest

from fakes.bad_requests import BAD_REQUESTS, CHAT, HELLO, BadRequest, check_error
from fakes.served import Server

HEADERS = {"Authorization": "Bearer test-key"}


@pytest.mark.parametrize("bad", BAD_REQUESTS, ids=lambda bad: bad.name)
def test_bad_request_is_refused_and_the_server_goes_on(server: Server, bad: BadRequest) -> None:
    with httpx.Client(base_url=server.url, headers=HEADERS, timeout=30) as client:
        headers = {"Content-Type": bad.content_type}
        response = client.request(bad.method, bad.path, content=bad.body, headers=headers)
        assert response.status_code == bad.status, response.text
        check_error(response.json(), bad)
        assert client.post(CHAT, json={"messages": HELLO, "max_tokens": 2}).status_code == 200


@pytest.mark.parametrize("authorization", [None, "Bearer wrong", "Bearer", "Basic dGVzdC1rZXk="])
def test_wrong_key(server: Server, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    response = httpx.post(server.url + CHAT, json={"messages": HELLO}, headers=headers)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"


def test_nothing_of_it_was_logged_as_an_exception(server: Server) -> None:
    assert "Traceback" not in server.log()
    assert " ERROR " not in server.log()

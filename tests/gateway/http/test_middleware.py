"""Request ids, API keys, the access log, errors nobody expected."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from fakes.fake_engine import FakeEngine, saying

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "secret question"}]


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/v1/nothing"])
async def test_every_response_has_a_request_id(serve: Any, path: str) -> None:
    client = await serve(FakeEngine())
    first, second = await client.get(path), await client.get(path)
    assert first.headers["x-request-id"] != second.headers["x-request-id"]


async def test_given_request_id_is_echoed_by_streams_too(serve: Any) -> None:
    client = await serve(FakeEngine())
    for stream in (False, True):
        response = await client.post(
            CHAT, json={"messages": HELLO, "stream": stream}, headers={"x-request-id": "my-id.7"}
        )
        assert response.headers["x-request-id"] == "my-id.7"


async def test_strange_request_id_is_replaced(serve: Any) -> None:
    response = await (await serve(FakeEngine())).get("/health", headers={"x-request-id": 'a"b c'})
    assert response.headers["x-request-id"] not in ("", 'a"b c')


async def test_any_of_several_keys_opens(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=("one", "two"))
    for key in ("one", "two"):
        assert (await client.get("/v1/models", headers=bearer(key))).status == 200


@pytest.mark.parametrize("headers", [{}, bearer("three"), bearer(""), {"Authorization": "Basic one"}, bearer("oné")])
async def test_wrong_key_is_refused(serve: Any, headers: dict[str, str]) -> None:
    client = await serve(FakeEngine(), api_keys=("one", "two"))
    response = await client.post(CHAT, json={"messages": HELLO}, headers=headers)
    assert response.status == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_probes_and_page_need_no_key(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=("one",))
    paths = ("/health", "/metrics", "/", "/v1/models", "/version")
    statuses = {path: (await client.get(path)).status for path in paths}
    assert statuses == {"/health": 200, "/metrics": 200, "/": 200, "/v1/models": 401, "/version": 401}


async def test_keys_are_tenants_that_share_no_cache(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine, api_keys=("one", "two"))
    for key in ("one", "two"):
        await client.post(CHAT, json={"messages": HELLO}, headers=bearer(key))
    first, second = engine.requests
    assert first.tenant != second.tenant
    assert first.cache_salt != second.cache_salt
    assert "one" not in first.tenant


async def test_access_log_is_json_without_prompts(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine(saying("secret answer")), api_keys=("the-key",))
    with caplog.at_level(logging.INFO, logger="hocket.access"):
        for stream in (False, True):
            response = await client.post(
                CHAT, json={"messages": HELLO, "stream": stream}, headers=bearer("the-key") | {"x-request-id": "r1"}
            )
            await response.read()
        await client.get("/v1/models")
    entries = [json.loads(record.message) for record in caplog.records if record.name == "hocket.access"]
    assert [(entry["path"], entry["status"]) for entry in entries] == [(CHAT, 200), (CHAT, 200), ("/v1/models", 401)]
    for entry in entries[:2]:
        assert entry["request_id"] == "r1"
        assert entry["class"] == "online"
        assert entry["output_tokens"] == len("secret answer") + 1
        assert entry["duration_ms"] >= entry["ttft_ms"] >= 0
    assert "secret" not in caplog.text
    assert "the-key" not in caplog.text


async def test_access_log_leaves_out_what_machines_ask_all_the_time(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    client = await serve(FakeEngine())
    with caplog.at_level(logging.INFO, logger="hocket.access"):
        for path in ("/health", "/metrics", "/v1/models"):
            await client.get(path)
    logged = [json.loads(record.message)["path"] for record in caplog.records if record.name == "hocket.access"]
    assert logged == ["/v1/models"]


async def test_access_log_cuts_paths(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine(), api_keys=("the-key",))
    with caplog.at_level(logging.INFO, logger="hocket.access"):
        assert (await client.get("/" + "x" * 5000)).status == 401
    (entry,) = (record.message for record in caplog.records if record.name == "hocket.access")
    assert json.loads(entry)["path"].startswith("/xxx")
    assert len(entry) < 1000


async def test_access_log_can_be_off(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine(), enable_access_log=False)
    with caplog.at_level(logging.INFO):
        await client.get("/health")
    assert not [record for record in caplog.records if record.name == "hocket.access"]


@pytest.mark.parametrize("stream", [False, True])
async def test_unexpected_failure_is_a_500_and_is_logged(
    serve: Any, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(request: Any) -> Any:
        raise RuntimeError("a bug in the engine client")

    client = await serve(FakeEngine(broken))
    response = await client.post(CHAT, json={"messages": HELLO, "stream": stream})
    assert response.status == 500
    assert (await response.json())["error"]["type"] == "server_error"
    assert "a bug" not in await response.text()
    assert "a bug in the engine client" in caplog.text


@pytest.mark.parametrize("target", ["/%FF%FE", "/%00", "/a%0Ab", "/%ED%A0%80"])
async def test_strange_paths_are_just_not_found(serve: Any, target: str, caplog: pytest.LogCaptureFixture) -> None:
    client = await serve(FakeEngine())
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert b" 404 " in await reader.readline()
    await reader.read()
    writer.close()
    assert "Traceback" not in caplog.text


async def test_client_that_goes_while_something_is_written_is_no_failure(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def gone(request: Any) -> Any:
        raise ConnectionResetError("Cannot write to closing transport")

    client = await serve(FakeEngine(gone), enable_access_log=False)
    with caplog.at_level(logging.INFO):
        response = await client.post(CHAT, json={"messages": HELLO, "stream": True})
    assert response.status == 499
    assert not caplog.records


async def test_allowed_methods_are_named(serve: Any) -> None:
    response = await (await serve(FakeEngine())).get(CHAT)
    assert response.status == 405
    assert response.headers["Allow"] == "POST"

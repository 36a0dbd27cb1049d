"""Which names and which pages a server answers: bind address x Host x Origin x route."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import TestClient

from fakes.fake_engine import FakeEngine

HELLO = [{"role": "user", "content": "Hello"}]
LOCAL: dict[str, Any] = {"host": "127.0.0.1"}
NAMED_LOCAL: dict[str, Any] = {"host": "127.0.0.1", "allowed_hosts": ("chat.example", ".lab.example")}
OPEN: dict[str, Any] = {"host": "0.0.0.0"}
KEYED: dict[str, Any] = {"host": "0.0.0.0", "api_keys": ("one",)}
NAMED: dict[str, Any] = {"host": "0.0.0.0", "allowed_hosts": ("chat.example",)}
ANY_NAME: dict[str, Any] = {"host": "127.0.0.1", "allowed_hosts": ("*",)}
ORIGINS: dict[str, Any] = {"host": "127.0.0.1", "allowed_origins": ("https://app.example", "app://notes")}
ANY_ORIGIN: dict[str, Any] = {"host": "127.0.0.1", "allowed_origins": ("*",)}

ALLOWED = [
    # who does not come from a page sends no Origin
    (LOCAL, "localhost:8000", None),
    (LOCAL, "LocalHost", None),
    (LOCAL, "127.0.0.1:8000", None),
    (LOCAL, "127.0.0.53", None),
    (LOCAL, "[::1]:8000", None),
    (LOCAL, "demo.localhost:8000", None),
    (NAMED_LOCAL, "chat.example", None),  # a proxy on this machine that passes Host on
    (NAMED_LOCAL, "Chat.Example.:443", None),
    (NAMED_LOCAL, "a.lab.example", None),
    (NAMED_LOCAL, "localhost", None),
    (ANY_NAME, "whatever.example", None),
    (OPEN, "10.1.2.3:8000", None),  # Prometheus and Kubernetes come by address
    (OPEN, "gpu-box.lan:8000", None),
    (KEYED, "gpu-box.lan:8000", None),
    (NAMED, "10.1.2.3:8000", None),
    (NAMED, "[fd00::1]:8000", None),
    (NAMED, "chat.example", None),
    (NAMED, "localhost:8000", None),
    # our own page, and pages of this machine
    (LOCAL, "localhost:8000", "http://localhost:8000"),
    (LOCAL, "127.0.0.1:8000", "http://localhost:5173"),  # a development server that rewrites Host
    (NAMED_LOCAL, "127.0.0.1:8000", "https://chat.example"),  # a proxy that does
    (NAMED_LOCAL, "chat.example", "https://chat.example"),
    (OPEN, "gpu-box.lan:8000", "http://gpu-box.lan:8000"),
    (OPEN, "chat.example", "https://chat.example:443"),
    (NAMED, "10.1.2.3:8000", "http://10.1.2.3:8000"),
    (NAMED, "10.1.2.3:8000", "https://chat.example"),
    (KEYED, "10.1.2.3:8000", "https://chat.example"),  # a page from elsewhere has no key
    # pages that were allowed
    (ORIGINS, "localhost:8000", "https://app.example"),
    (ORIGINS, "localhost:8000", "app://notes"),
    (ANY_ORIGIN, "localhost:8000", "https://evil.example"),
    (ANY_ORIGIN, "localhost:8000", "null"),
]
REFUSED = [
    # a name that was rebound to our address
    (LOCAL, "evil.example:8000", None),
    (LOCAL, "evil.example:8000", "http://evil.example:8000"),
    (LOCAL, "localhost.evil.example", None),
    (LOCAL, "127.0.0.1.evil.example", None),
    (LOCAL, "notlocalhost", None),
    (LOCAL, "10.1.2.3", None),
    (LOCAL, "", None),
    (LOCAL, "localhost@evil.example", None),
    (LOCAL, "evil.example/localhost", None),
    (LOCAL, "localhost:port", None),
    (NAMED_LOCAL, "evil.example", None),
    (NAMED_LOCAL, "lab.example.evil.example", None),
    (NAMED_LOCAL, "evillab.example", None),
    (NAMED, "gpu-box.lan", None),
    (ORIGINS, "app.example", None),
    (ANY_ORIGIN, "evil.example", None),
    # a page of another site
    (LOCAL, "127.0.0.1:8000", "http://evil.example:8000"),
    (LOCAL, "127.0.0.1:8000", "http://localhost.evil.example"),
    (LOCAL, "127.0.0.1:8000", "http://localhost@evil.example"),
    (LOCAL, "127.0.0.1:8000", "null"),
    (LOCAL, "127.0.0.1:8000", "chrome-extension://localhost"),
    (LOCAL, "127.0.0.1:8000", ""),
    (OPEN, "10.1.2.3:8000", "http://10.1.2.4:8000"),
    (OPEN, "10.1.2.3:8000", "http://10.1.2.3:9000"),
    (OPEN, "gpu-box.lan:8000", "http://evil.example"),
    (OPEN, "gpu-box.lan:8000", "null"),
    (NAMED, "chat.example", "https://evil.example"),
    (ANY_NAME, "127.0.0.1", "https://evil.example"),
    (ORIGINS, "localhost:8000", "https://evil.example"),
    (ORIGINS, "localhost:8000", "http://app.example"),
]


async def statuses(client: TestClient[Any, Any], headers: dict[str, str]) -> dict[str, int]:
    """Of routes that read, that change something, and that need no key."""
    form = aiohttp.FormData({"purpose": "user_data"})
    form.add_field("file", b"text", filename="a.txt")
    calls: list[tuple[str, str, dict[str, Any]]] = [
        ("GET", "/", {}),
        ("GET", "/health", {}),
        ("GET", "/metrics", {}),
        ("GET", "/v1/models", {}),
        ("GET", "/v1/files", {}),
        ("POST", "/v1/files", {"data": form}),
        ("GET", "/v1/batches", {}),
        ("POST", "/v1/chat/completions", {"json": {"messages": HELLO}}),
        ("POST", "/tokenize", {"json": {"prompt": "a"}}),
        ("POST", "/v1/advisories", {"json": {"session_id": "s", "event": "typing"}}),
        ("DELETE", "/v1/sessions/s", {}),
    ]
    found = {}
    for method, path, sent in calls:
        async with client.request(method, path, headers=headers, **sent) as response:
            await response.read()
            found[f"{method} {path}"] = response.status
    return found


def head(config: dict[str, Any], host: str, origin: str | None) -> dict[str, str]:
    key = {"Authorization": "Bearer one"} if "api_keys" in config else {}
    return {"Host": host} | ({} if origin is None else {"Origin": origin}) | key


@pytest.mark.parametrize(("config", "host", "origin"), ALLOWED)
async def test_allowed(serve: Any, tmp_path: Path, config: dict[str, Any], host: str, origin: str | None) -> None:
    client = await serve(FakeEngine(), data_dir=str(tmp_path), **config)
    found = await statuses(client, head(config, host, origin))
    del found["DELETE /v1/sessions/s"]  # there is none
    assert set(found.values()) <= {200}, found


@pytest.mark.parametrize(("config", "host", "origin"), REFUSED)
async def test_refused(serve: Any, tmp_path: Path, config: dict[str, Any], host: str, origin: str | None) -> None:
    engine = FakeEngine()
    client = await serve(engine, data_dir=str(tmp_path), **config)
    found = await statuses(client, head(config, host, origin))
    assert set(found.values()) == {403}, found
    assert engine.requests == []
    assert engine.advisories == []


async def test_refusal_says_which_option_would_help(serve: Any) -> None:
    client = await serve(FakeEngine())
    async with client.get("/v1/models", headers={"Host": "gpu-box.lan"}) as response:
        error = (await response.json())["error"]
    assert error["code"] == "host_not_allowed"
    assert "gpu-box.lan" in error["message"]
    assert "--allowed-hosts" in error["message"]
    async with client.get("/v1/models", headers={"Origin": "https://a.example"}) as response:
        error = (await response.json())["error"]
    assert error["code"] == "origin_not_allowed"
    assert "--allowed-origins" in error["message"]


async def test_a_whole_url_in_the_request_line_counts_as_host(serve: Any) -> None:
    client = await serve(FakeEngine())
    for url, status in (("http://evil.example/health", 403), ("http://localhost:1/health", 200)):
        reader, writer = await _open(client)
        writer.write(f"GET {url} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        assert int((await reader.readline()).split()[1]) == status
        writer.close()


async def test_client_of_http_1_0_needs_no_host(serve: Any) -> None:
    reader, writer = await _open(await serve(FakeEngine()))
    writer.write(b"GET /health HTTP/1.0\r\n\r\n")
    assert b" 200 " in await reader.readline()
    writer.close()


async def test_allowed_page_may_ask_and_read(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=("one",), **ORIGINS)
    origin = {"Origin": "https://app.example"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,x-session-id"}
    async with client.options("/v1/chat/completions", headers=origin | asked) as response:
        assert response.status == 204
        assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
        assert response.headers["Access-Control-Allow-Headers"] == "authorization,x-session-id"
        assert "POST" in response.headers["Access-Control-Allow-Methods"]
    for stream in (False, True):
        key = {"Authorization": "Bearer one"}
        body = {"messages": HELLO, "stream": stream}
        async with client.post("/v1/chat/completions", json=body, headers=origin | key) as response:
            assert response.status == 200
            assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"
            assert response.headers["Vary"] == "Origin"
    async with client.post("/v1/chat/completions", json={}, headers=origin) as response:
        assert response.status == 401  # the page may read why
        assert response.headers["Access-Control-Allow-Origin"] == "https://app.example"


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", None])
async def test_other_pages_get_no_leave_to_read(serve: Any, origin: str | None) -> None:
    client = await serve(FakeEngine(), **ORIGINS)
    headers = {} if origin is None else {"Origin": origin}
    for method in ("OPTIONS", "GET"):
        async with client.request(method, "/v1/models", headers=headers) as response:
            assert not [name for name in response.headers if name.lower().startswith("access-control")]
            assert response.headers["Vary"] == "Origin"


async def _open(client: TestClient[Any, Any]) -> Any:
    return await asyncio.open_connection(client.host, client.port)

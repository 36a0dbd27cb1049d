"""Bytes that are no text, in every header and path, on every route: never our failure, and nothing is left of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fakes.eventually import eventually
from fakes.fake_engine import FakeEngine
from fakes.leak_check import assert_nothing_is_open
from fakes.raw_gateway import RawGateway, raw_gateway
from gateway.services import Services

BOUNDARY = b"XX"
FORM = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\ntext\r\n--XX--\r\n'
)
HELLO = [{"role": "user", "content": "Hello"}]
ROUTES: list[tuple[str, str, bytes]] = [
    ("GET", "/", b""),
    ("GET", "/health", b""),
    ("GET", "/metrics", b""),
    ("GET", "/version", b""),
    ("GET", "/v1/models", b""),
    ("GET", "/v1/models/x", b""),
    ("GET", "/v1/files", b""),
    ("GET", "/v1/files/file-1", b""),
    ("GET", "/v1/files/file-1/content", b""),
    ("DELETE", "/v1/files/file-1", b""),
    ("POST", "/v1/files", FORM),
    ("GET", "/v1/batches", b""),
    ("POST", "/v1/batches", json.dumps({"input_file_id": "f", "endpoint": "/v1/completions"}).encode()),
    ("GET", "/v1/batches/batch-1", b""),
    ("GET", "/v1/batches/batch-1/results", b""),
    ("POST", "/v1/batches/batch-1/cancel", b""),
    ("POST", "/v1/chat/completions", json.dumps({"messages": HELLO}).encode()),
    ("POST", "/v1/chat/completions", json.dumps({"messages": HELLO, "stream": True}).encode()),
    ("POST", "/v1/completions", b'{"prompt": "a"}'),
    ("POST", "/tokenize", b'{"prompt": "a"}'),
    ("POST", "/detokenize", b'{"tokens": [1]}'),
    ("POST", "/v1/advisories", b'{"session_id": "s", "event": "typing"}'),
    ("GET", "/v1/sessions/s", b""),
    ("DELETE", "/v1/sessions/s", b""),
    ("POST", "/v1/webhooks/typing", b"{}"),
    ("GET", "/nothing", b""),
]
HEADERS = [
    *("Accept", "Accept-Encoding", "Authorization", "Connection", "Content-Encoding", "Content-Type", "Cookie"),
    *("Expect", "Host", "If-Modified-Since", "If-None-Match", "If-Range", "Origin", "Range", "Referer", "User-Agent"),
    *("X-Forwarded-For", "X-Request-Id", "X-Session-Id", "X-Anything", "Access-Control-Request-Headers"),
    *("webhook-id", "webhook-timestamp", "webhook-signature", "Upgrade"),
]
VALUES = [b"\xff", b"\x80\xbfabc", b"caf\xc3\xa9", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf" * 2000]


async def ask(gateway: RawGateway, method: str, path: bytes, body: bytes, name: str, value: bytes) -> tuple[int, bytes]:
    is_form = body is FORM
    kind = b"multipart/form-data; boundary=XX" if is_form else b"application/json"
    headers = {b"host": b"localhost", b"content-type": kind, b"authorization": b"Bearer one"}
    headers |= {b"content-length": str(len(body)).encode(), b"connection": b"close", name.lower().encode(): value}
    client = await gateway.connect(method.encode() + b" " + path + b" HTTP/1.1\r\n")
    client.send(b"".join(b"%b: %b\r\n" % item for item in headers.items()) + b"\r\n" + body)
    client.writer.write_eof()
    answer = await client.rest()
    await client.close()
    gateway.clients.remove(client)
    return int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("name", HEADERS)
async def test_bytes_in_headers(
    make_services: Callable[..., Services], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    services = make_services(FakeEngine(), data_dir=str(tmp_path), api_keys=("one",))
    async with raw_gateway(services) as gateway:
        for method, path, body in ROUTES:
            for value in VALUES:
                status, answer = await ask(gateway, method, path.encode(), body, name, value)
                assert status < 500, (method, path, value, answer)
                if status >= 400:
                    assert set(json.loads(answer)) == {"error"}
        await assert_nothing_is_left(gateway)
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("value", VALUES)
async def test_bytes_in_paths(
    make_services: Callable[..., Services], tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    services = make_services(FakeEngine(), data_dir=str(tmp_path), api_keys=("one",))
    escaped = b"".join(b"%%%02x" % byte for byte in value)
    async with raw_gateway(services) as gateway:
        for method, path, body in ROUTES:
            for tail in (value, escaped, b"?limit=" + value, b"?after=" + escaped, b"?" + escaped, b"#" + value):
                status, answer = await ask(gateway, method, path.encode() + tail, body, "X-A", b"a")
                assert status < 500, (method, path, tail, answer)
        await assert_nothing_is_left(gateway)
    assert "Traceback" not in caplog.text


async def assert_nothing_is_left(gateway: RawGateway) -> None:
    await eventually(lambda: len(gateway.connections) == 0)
    await assert_nothing_is_open(gateway.services)

"""Schemathesis over /openapi.json: what the description allows, and what it forbids, never breaks the server.

No 5xx, no status, type or shape that is not declared, nothing logged as the gateway's own failure, nothing left open.
A few cases of each route; `make test-schema` runs 5,000.
"""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from fuzz.in_process_server import InProcessServer
from gateway.protocol.server.document import openapi_document
from gateway.protocol.server.operations import OPERATIONS

BASE = "http://localhost"
CASES = int(os.environ.get("HOCKET_TEST_SCHEMA_CASES", "0"))
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
HUGE = 4000  # more characters make a test slow, not better

schema = schemathesis.openapi.from_dict(json.loads(openapi_document("1", has_keys=False)))
by_name = {result.ok().label: result.ok() for result in schema.get_all_operations()}
RUNS = [(f"{operation.method} {operation.path}", GenerationMode.POSITIVE) for operation in OPERATIONS] + [
    (f"{operation.method} {operation.path}", GenerationMode.NEGATIVE)  # what the description forbids
    for operation in OPERATIONS
    if operation.body or operation.form or operation.query
]
EACH = max(3, -(-CASES // len(RUNS)))


@pytest.fixture(scope="module")
def server() -> InProcessServer:
    return InProcessServer(enable_tokenizer_info_endpoint=True, enable_cache_reset=True)


def send(server: InProcessServer, request: requests.PreparedRequest) -> Response:
    body = request.body or b""
    data = body.encode() if isinstance(body, str) else body
    names = {"host": "localhost", "connection": "close", "content-length": str(len(data))}
    headers = {**{str(name).lower(): str(value) for name, value in request.headers.items()}, **names}
    lines = [f"{request.method} {request.path_url} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    head = "".join(f"{line}\r\n" for line in (*lines, "")).encode("utf-8", "surrogateescape")
    status, answer_head, answer_body = server.answer(head + data)
    lines = answer_head.decode("latin-1").split("\r\n")[1:]
    found = {name.lower(): [value.strip()] for name, _, value in (line.partition(":") for line in lines)}
    content = unchunked(answer_body) if "transfer-encoding" in found else answer_body
    return Response(status, found, content, request, elapsed=0.0, verify=False)


def unchunked(body: bytes) -> bytes:
    found = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        found, body = found + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return found


def prepared(method: str, path: str, **fields: Any) -> requests.PreparedRequest:
    return requests.Request(method, BASE + path, **fields).prepare()


@pytest.fixture(scope="module")
def known(server: InProcessServer) -> dict[str, str]:
    """Ids that exist, by the parameter of a path."""

    def made(path: str, **fields: Any) -> str:
        response = send(server, prepared("POST", path, **fields))
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    line = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "a", "max_tokens": 2}}
    file = made("/v1/files", files={"file": ("a.jsonl", json.dumps(line))}, data={"purpose": "batch"})
    batch = {"input_file_id": file, "endpoint": "/v1/completions", "completion_window": "24h"}
    send(server, prepared("POST", "/v1/completions", json={"prompt": "a", "session_id": "s"}))
    return {
        "file": file,
        "batch": made("/v1/batches", json=batch),
        "id": made("/v1/responses", json={"input": "Hello"}),
        "session_id": "s",
        "model": "demo",
    }


def modest(case: Any) -> bool:
    return len(str(case.body)) < HUGE


@pytest.mark.parametrize(("name", "mode"), RUNS, ids=lambda value: getattr(value, "value", value))
@pytest.mark.filterwarnings("default")
def test_route(server: InProcessServer, known: dict[str, str], name: str, mode: GenerationMode) -> None:
    operation = by_name[name]

    @settings(
        max_examples=EACH,
        deadline=None,
        derandomize=not CASES,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @given(case=operation.as_strategy(generation_mode=mode).filter(modest), is_known=st.booleans())
    def check_route(case: Any, is_known: bool) -> None:
        if is_known:
            case.path_parameters = {key: known.get(key, value) for key, value in (case.path_parameters or {}).items()}
        request = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
        case.validate_response(send(server, request), checks=CHECKS)

    check_route()

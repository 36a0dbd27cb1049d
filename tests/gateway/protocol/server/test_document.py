"""`/openapi.json` has every route of the application, with shapes that exist; `/docs` needs nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from aiohttp import web

from fakes.fake_engine import FakeEngine
from gateway.http.middleware import OPEN_PATHS
from gateway.protocol.server.document import openapi_document
from gateway.protocol.server.operations import OPERATIONS
from gateway.routes import routes

STATIC = Path(__file__).resolve().parents[4] / "gateway" / "static"


@pytest.fixture(scope="module")
def document() -> Any:
    return json.loads(openapi_document("1", has_keys=True))


def served() -> set[tuple[str, str]]:
    app = web.Application()
    app.add_routes(routes())
    found = ((route.method, route.resource) for route in app.router.routes())
    return {(method, resource.canonical) for method, resource in found if resource and method != "HEAD"}


def test_every_route_of_the_application_is_described_and_no_other() -> None:
    """A new route: gateway/protocol/server/operations.py."""
    assert {(operation.method, operation.path) for operation in OPERATIONS} == served()


def test_keys_are_asked_for_where_the_middleware_asks() -> None:
    assert {operation.path for operation in OPERATIONS if not operation.needs_key} == OPEN_PATHS


def test_names_are_unique() -> None:
    assert len({operation.id for operation in OPERATIONS}) == len(OPERATIONS)


def every(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from (found for name, found in value.items() if name == key)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from every(inner, key)


def test_every_reference_leads_to_a_schema(document: Any) -> None:
    references = {reference.rsplit("/", 1)[1] for reference in every(document["paths"], "$ref")}
    references |= {reference.rsplit("/", 1)[1] for reference in every(document["components"], "$ref")}
    assert references <= set(document["components"]["schemas"])
    for schema in document["components"]["schemas"].values():
        jsonschema.Draft202012Validator.check_schema(schema)


def test_every_operation_says_how_it_may_fail(document: Any) -> None:
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert {"400", "403", "500", "503"} < set(operation["responses"]), path
            assert ("security" in operation) == ("401" in operation["responses"]) or path == "/v1/webhooks/typing"


def test_a_server_without_keys_asks_for_none() -> None:
    document = json.loads(openapi_document("1", has_keys=False, root_path="/llm/"))
    assert "securitySchemes" not in document["components"]
    assert list(every(document["paths"], "security")) == []
    assert document["servers"] == [{"url": "/llm"}]


async def test_both_are_served_without_a_key(serve: Any) -> None:
    client = await serve(FakeEngine(), api_keys=("k",))
    described = await client.get("/openapi.json")
    assert (described.status, described.content_type) == (200, "application/json")
    assert "bearer" in (await described.json())["components"]["securitySchemes"]
    page = await client.get("/docs")
    assert (page.status, page.content_type) == (200, "text/html")
    assert "default-src 'none'" in page.headers["Content-Security-Policy"]


def test_the_page_asks_nobody_else() -> None:
    text = (STATIC / "docs.html").read_text()
    assert re.findall(r"https?://|src=|@import|innerHTML", text) == []
    assert re.findall(r'fetch\("([^"]+)"', text) == ["openapi.json"]

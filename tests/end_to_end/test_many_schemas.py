"""The proof of bench/proofs/json_schemas.py on schemas of our own: nothing but valid and refused."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from bench.lib.json_schemas.verdicts import Judged, Verdict, judge
from fakes.json_schemas import SCHEMAS
from fakes.served import Server

KEY = "test-key"
REFUSED: dict[str, Any] = {
    "not": {"not": {"type": "string"}},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "if, then": {"if": {"type": "string"}, "then": {"maxLength": 3}},
    "contains": {"type": "array", "contains": {"const": 1}},
    "propertyNames": {"type": "object", "propertyNames": {"maxLength": 3}},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "oneOf": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 3}]},
    "minProperties, maxProperties": {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "minProperties": 2},
    "pattern": {"type": "string", "pattern": "^(?!a)"},
    "$ref": {"$ref": "http://localhost/elsewhere.json"},
}


def ask(server: Server, number: int, schema: Any) -> Judged:
    body = {
        "messages": [{"role": "user", "content": "Hello"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
        "max_tokens": 200,
        "seed": number,
        "temperature": 1.0,
    }
    headers = {"Authorization": f"Bearer {KEY}"}
    response = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers=headers, timeout=120)
    return judge(schema, response.status_code, response.json())


def test_what_is_finished_validates_and_what_is_refused_has_a_name(server: Server) -> None:
    asked = [*SCHEMAS.items(), *REFUSED.items()]
    with ThreadPoolExecutor(8) as threads:
        judged = dict(
            zip(dict(asked), threads.map(lambda n: ask(server, n, asked[n][1]), range(len(asked))), strict=True)
        )
    refused = {name: result.why for name, result in judged.items() if result.verdict is Verdict.REFUSED}
    assert refused == {name: name for name in REFUSED}
    others = {name: result for name, result in judged.items() if name in SCHEMAS}
    assert {result.verdict for result in others.values()} <= {Verdict.VALID, Verdict.CUT}, others
    assert sum(result.verdict is Verdict.VALID for result in others.values()) > len(SCHEMAS) // 2

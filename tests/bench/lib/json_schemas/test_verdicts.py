"""What became of a schema, by the server's answer."""

from __future__ import annotations

from typing import Any

import pytest

from bench.lib.json_schemas.verdicts import Judged, Verdict, judge, named

NUMBER = {"type": "object", "properties": {"a": {"type": "number", "multipleOf": 0.01}}, "required": ["a"]}


def answer(content: str, finish_reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"finish_reason": finish_reason, "message": {"content": content}}]}


def refusal(message: str, **fields: Any) -> dict[str, Any]:
    error = {"message": message, "type": "invalid_request_error", "param": "response_format", "code": "invalid_grammar"}
    return {"error": error | fields}


@pytest.mark.parametrize(
    ("schema", "status", "body", "verdict"),
    [
        (NUMBER, 200, answer('{"a": 4.01}'), Verdict.VALID),
        (NUMBER, 200, answer('{"a": 4.015}'), Verdict.WRONG),
        (NUMBER, 200, answer('{"a": '), Verdict.WRONG),
        (NUMBER, 200, answer('{"a": ', "length"), Verdict.CUT),
        (NUMBER, 200, answer("", "content_filter"), Verdict.BROKEN),
        (NUMBER, 200, {"choices": []}, Verdict.BROKEN),
        (NUMBER, 500, None, Verdict.BROKEN),
        (NUMBER, 400, refusal('"not" is not supported'), Verdict.REFUSED),
        (NUMBER, 400, refusal("no", param=None), Verdict.BROKEN),
        (NUMBER, 400, refusal("no", code="other"), Verdict.BROKEN),
        ({"type": "string", "format": "date"}, 200, answer('"2023-02-29"'), Verdict.WRONG),
        ({"type": "string", "pattern": r"^\p{Lu}$"}, 200, answer('"É"'), Verdict.VALID),
        ({"type": "string", "pattern": r"^\p{Lu}$"}, 200, answer('"é"'), Verdict.WRONG),
    ],
)
def test_verdicts(schema: Any, status: int, body: Any, verdict: Verdict) -> None:
    assert judge(schema, status, body).verdict is verdict


def test_a_refusal_says_for_what() -> None:
    assert judge({}, 400, refusal('these keywords are not supported: ["if", "then"]')) == Judged(
        Verdict.REFUSED, "if, then"
    )
    assert named("Unsatisfiable schema: required property 'id'") == "no answer can validate"

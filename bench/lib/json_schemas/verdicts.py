"""What became of one schema: followed, refused, cut or wrong, and by whose word."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

import jsonschema
import jsonschema_rs

_NAMED = re.compile(r'"([$\w]+)"')
_KINDS = (("unsatisfiable", "no answer can validate"), ("characters; at most", "too long"), ("regex", "pattern"))


class Verdict(StrEnum):
    VALID = "valid"  # finished, and validates
    REFUSED = "refused"  # with 400, in OpenAI's shape
    CUT = "cut"  # at max_tokens
    WRONG = "wrong"  # finished, and does not validate
    BROKEN = "broken"  # any other answer


@dataclass(frozen=True, slots=True)
class Judged:
    verdict: Verdict
    why: str = ""  # what is refused, or wrong


def judge(schema: Any, status: int, body: Any) -> Judged:
    """body: of the answer, as JSON; None if it is none."""
    try:
        if status == 400:
            return _refusal(body["error"])
        if status != 200:
            return Judged(Verdict.BROKEN, f"{status} {body}")
        choice = body["choices"][0]
        reason = choice["finish_reason"]
        if reason == "length":
            return Judged(Verdict.CUT)
        if reason != "stop":
            return Judged(Verdict.BROKEN, f"finish_reason {reason}")
        text = choice["message"]["content"]
    except (KeyError, TypeError, IndexError):
        return Judged(Verdict.BROKEN, f"{status} {body}")
    problem = find_problem(schema, text)
    return Judged(Verdict.VALID) if problem is None else Judged(Verdict.WRONG, f"{problem}: {text}")


def find_problem(schema: Any, text: str) -> str | None:
    """Why an answer does not validate, formats included: jsonschema decides, and jsonschema_rs what it cannot read."""
    try:
        instance = json.loads(text)
    except ValueError as error:
        return f"no JSON ({error})"
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        errors = kind(schema, format_checker=kind.FORMAT_CHECKER).iter_errors(instance)
        error = jsonschema.exceptions.best_match(error for error in errors if not _is_of_binary_fractions(error))
        return None if error is None else f"{error.message[:300]} ({'/'.join(map(str, error.absolute_schema_path))})"
    except Exception:  # a pattern that Python's re cannot read, a reference without end
        return _second_opinion(schema, instance)


def _is_of_binary_fractions(error: jsonschema.ValidationError) -> bool:
    """4.01 is a multiple of 0.01, but not for jsonschema, which divides floats."""
    if error.validator != "multipleOf":
        return False
    return Decimal(repr(error.instance)) % Decimal(repr(error.validator_value)) == 0


def _second_opinion(schema: Any, instance: Any) -> str | None:
    try:
        jsonschema_rs.validate(schema, instance, validate_formats=True)
    except jsonschema_rs.ValidationError as error:
        return f"{error.message[:300]}"
    return None


def _refusal(error: dict[str, Any]) -> Judged:
    if error["type"] != "invalid_request_error" or error["code"] != "invalid_grammar" or not error["param"]:
        return Judged(Verdict.BROKEN, f"400 {error}")
    return Judged(Verdict.REFUSED, named(error["message"]))


def named(message: str) -> str:
    """The keywords that a refusal is about, or its kind."""
    found = _NAMED.findall(message.split(";")[0])
    if found:
        return ", ".join(dict.fromkeys(found))
    return next((kind for word, kind in _KINDS if word in message.lower()), message)

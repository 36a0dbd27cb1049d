"""A schema whose answers do not end within a benchmark: cut at max_tokens, they all have the same length."""

from __future__ import annotations

from typing import Any

_RECORD = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "count": {"type": "integer", "minimum": 0, "maximum": 99999},
        "kind": {"enum": ["first", "second", "third"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "minItems": 1, "maxItems": 4},
    },
    "required": ["name", "count", "kind", "tags"],
    "additionalProperties": False,
}
LONG_ANSWER: dict[str, Any] = {"type": "array", "items": _RECORD, "minItems": 500}

"""What a parameter's value may be by its JSON schema, and the JSON of a value that was written as plain text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Kinds = frozenset[str]  # JSON's types; an integer is a number, too
Schema = Mapping[str, Any]

ANY: Kinds = frozenset(("string", "number", "integer", "boolean", "null", "array", "object"))
STRING: Kinds = frozenset(("string",))
NO_STRING: Kinds = ANY - STRING
_MAX_DEPTH = 16  # of references and choices
_PYTHON = {"True": "true", "False": "false", "None": "null"}  # as some templates taught it


def kinds_of(schema: Any, root: Schema, depth: int = 0) -> Kinds:
    """Of a parameter's schema; where it does not say, all. root: what references lead into."""
    if not isinstance(schema, Mapping) or depth > _MAX_DEPTH:
        return ANY
    if "$ref" in schema:
        return kinds_of(referred(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return frozenset(_kind(schema["const"]))
    if isinstance(schema.get("enum"), list):
        return frozenset(kind for value in schema["enum"] for kind in _kind(value))
    kinds = _said(schema.get("type"))
    for key in ("anyOf", "oneOf"):
        if isinstance(schema.get(key), list):
            kinds &= frozenset().union(*(kinds_of(part, root, depth + 1) for part in schema[key][:_MAX_DEPTH]))
    for part in (schema.get("allOf") or ())[:_MAX_DEPTH] if isinstance(schema.get("allOf"), list) else ():
        kinds &= kinds_of(part, root, depth + 1)
    return kinds


def referred(reference: Any, root: Schema) -> Any:
    """What a reference within the schema leads to; None: nothing."""
    found: Any = root
    if not isinstance(reference, str) or not reference.startswith("#/"):
        return root if reference == "#" else None
    for name in reference[2:].split("/"):
        if not isinstance(found, Mapping):
            return None
        found = found.get(name.replace("~1", "/").replace("~0", "~"))
    return found


def as_json(text: str, kinds: Kinds) -> str:
    """What can be a value of those kinds is one; all else is a string."""
    if kinds == STRING:
        return _quoted(text)
    literal = _PYTHON.get(text.strip(), text.strip())
    try:
        value = json.loads(literal, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return _quoted(text)
    if "string" in kinds and (isinstance(value, str) or not _kind(value) & kinds):
        return _quoted(text)
    return literal


def _kind(value: Any) -> Kinds:
    if isinstance(value, bool):
        return frozenset(("boolean",))
    if isinstance(value, int):
        return frozenset(("integer", "number"))
    if isinstance(value, float):
        return frozenset(("integer", "number") if value.is_integer() else ("number",))
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset((names[type(value)],))


def _said(said: Any) -> Kinds:
    """By the schema's `type`."""
    kinds = frozenset([said] if isinstance(said, str) else said if isinstance(said, list) else ANY) & ANY
    return kinds | {"integer"} if "number" in kinds else kinds or ANY


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")

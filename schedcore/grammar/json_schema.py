"""A client's JSON schema, said in the keywords that llguidance follows, where that can be done without allowing more.

- Annotations go: they are most of many schemas' length, and say nothing about what validates.
- Formats that no draft knows go, as JSON Schema asks of a validator; the others are patterns where llguidance has none.
- `dependencies` and its two successors become alternatives.
- Branches of a `oneOf` are made to exclude one another (schedcore/grammar/one_of.py).

Whatever else cannot be followed stays, for llguidance to refuse by name.
"""

from __future__ import annotations

import json
from typing import Any

from schedcore.grammar.formats import FOLLOWED, PATTERNS
from schedcore.grammar.one_of import exclusive
from schedcore.grammar.references import References

Schema = Any  # an object, true or false; or what is none, and is refused later

_MAP_KEYS = frozenset(["properties", "patternProperties", "$defs", "definitions"])
_DEPENDENCIES = frozenset(["dependencies", "dependentRequired", "dependentSchemas"])
_DATA_KEYS = frozenset(["enum", "const", "default", "examples", "required", "type"])
_ANNOTATIONS = frozenset(["title", "description", "$comment"])
MAX_DEPENDENCIES = 4  # of one object: alternatives multiply
MAX_INLINED = 131_072  # characters, of the schema and what is taken in
MAX_NESTED_CHOICES = 4  # of a `oneOf` in branches of another that are references


def followable(text: str) -> str:
    """Raises ValueError if it is no JSON, RecursionError if it is too deep."""
    schema = json.loads(text)
    if isinstance(schema, dict):
        schema.pop("x-guidance", None)  # llguidance's own options, some of which allow more than the schema does
    return json.dumps(
        followable_tree(schema, max(0, MAX_INLINED - len(text))), ensure_ascii=False, separators=(",", ":")
    )


def followable_tree(schema: Schema, max_inlined: int = MAX_INLINED) -> Schema:
    """As new objects; the old ones are left alone. max_inlined: characters of references' targets that it may take in.
    Raises RecursionError.
    """
    return _Rewriting(References(schema, max_inlined)).of(schema)


class _Rewriting:
    def __init__(self, references: References) -> None:
        self._references = references
        self._num_choices = 0  # of references that are being resolved around what is looked at

    def of(self, schema: Schema) -> Schema:
        if not isinstance(schema, dict):
            return schema
        said = {
            key: self._choice(value, schema) if key == "oneOf" and isinstance(value, list) else self._value(key, value)
            for key, value in schema.items()
            if not (key in _ANNOTATIONS and isinstance(value, str))
        }
        _say_format(said)
        _say_dependencies(said)
        return said

    def _value(self, key: str, value: Any) -> Any:
        if key in _DATA_KEYS:
            return value
        if key in _MAP_KEYS or key in _DEPENDENCIES:
            return {k: self.of(v) for k, v in value.items()} if isinstance(value, dict) else value
        if isinstance(value, list):
            return [self.of(entry) for entry in value]
        return self.of(value)  # a keyword that nobody knows may hold schemas that are referred to

    def _choice(self, branches: list[Schema], around: dict[str, Any]) -> list[Schema]:
        if self._num_choices >= MAX_NESTED_CHOICES:
            return [self.of(branch) for branch in branches]
        self._num_choices += 1
        said = [self.of(self._references.resolved(branch)) for branch in branches]
        self._num_choices -= 1
        return exclusive(said, around)


def _say_format(schema: dict[str, Any]) -> None:
    name = schema.get("format")
    if not isinstance(name, str) or name in FOLLOWED:
        return
    del schema["format"]
    if name in PATTERNS:
        _also(schema, {"pattern": f"^(?:{PATTERNS[name]})$"})


def _say_dependencies(schema: dict[str, Any]) -> None:
    """Each is: the property is absent, or what depends on it holds."""
    found = [(key, schema[key]) for key in _DEPENDENCIES if isinstance(schema.get(key), dict)]
    if not found or sum(len(entries) for _, entries in found) > MAX_DEPENDENCIES:
        return
    for key, entries in found:
        del schema[key]
        for name, wanted in entries.items():
            holds = {"required": [name, *wanted]} if isinstance(wanted, list) else wanted
            _also(schema, {"anyOf": [{"properties": {name: False}}, holds]})


def _also(schema: dict[str, Any], more: dict[str, Any]) -> None:
    """In place: what satisfies both."""
    if not schema.keys() & more.keys():
        schema.update(more)
    else:
        schema["allOf"] = [*schema.get("allOf", []), more]

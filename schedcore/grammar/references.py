"""Where a JSON schema's references lead, within itself."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import unquote

MAX_HOPS = 8  # from a reference to a reference
_BASES = ("$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor")


class References:
    """Of one schema. Resolves what is nothing but a reference, within a budget; the rest stays what it is."""

    def __init__(self, root: Any, max_inlined: int) -> None:
        """max_inlined: characters that may be taken in."""
        self._root = root
        self._left = 0 if _has_bases_within(root) else max_inlined
        self._lengths: dict[str, int] = {}  # in characters, by reference

    def resolved(self, schema: Any) -> Any:
        """Literals that its properties refer to, too: they are what tells the branches of a choice from one another."""
        target = self._target(schema)
        if not isinstance(target, dict) or not isinstance(target.get("properties"), dict):
            return target
        properties = {name: self._literal(of_name) for name, of_name in target["properties"].items()}
        return target | {"properties": properties}

    def _literal(self, schema: Any) -> Any:
        if not _is_reference(schema):
            return schema
        target = self._target(schema)
        return target if isinstance(target, dict) and target.keys() & {"const", "enum"} else schema

    def _target(self, schema: Any) -> Any:
        """schema itself where it is no reference, or cannot be followed."""
        found = schema
        for _ in range(MAX_HOPS):
            if not _is_reference(found):
                return found
            if self._left <= 0:
                return schema
            reference = found["$ref"]
            found = _at(self._root, reference)
            if not isinstance(found, dict):
                return schema
            if reference not in self._lengths:
                self._lengths[reference] = len(json.dumps(found))
            self._left -= self._lengths[reference]
        return schema


def _is_reference(schema: Any) -> bool:
    """To the schema itself, and nothing beside it that validates."""
    if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str) or not schema["$ref"].startswith("#"):
        return False
    return all(key in ("$ref", "title", "description", "$comment") for key in schema)


def _at(root: Any, reference: str) -> Any:
    """None if nothing is there."""
    found = root
    for part in unquote(reference[1:]).split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        found = found.get(name) if isinstance(found, dict) else None
    return found


def _has_bases_within(root: Any) -> bool:
    """Whether a part has a name of its own, so that references in it lead elsewhere when it is moved."""
    inner = list(root.values()) if isinstance(root, dict) else []
    while inner:
        node = inner.pop()
        if isinstance(node, dict):
            if any(isinstance(node.get(name), str) for name in _BASES):
                return True
            inner.extend(node.values())
        elif isinstance(node, list):
            inner.extend(node)
    return False

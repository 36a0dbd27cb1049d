"""`oneOf`: exactly one branch holds. llguidance follows it where it can prove that no two branches hold at once.

Objects that differ in what they require are made to exclude one another by absence: of two branches A and B, A must not
have a property that B requires and A does not, and the other way about. All that is allowed then satisfies the `oneOf`.
What is lost are objects with that property and another reason not to be B.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

MAX_BRANCHES = 64  # pairs are compared
_TYPES = frozenset({"null", "boolean", "integer", "number", "string", "array", "object"})


def exclusive(branches: list[Any], around: dict[str, Any]) -> list[Any]:
    """As they are where they exclude one another already, or cannot be made to.

    around: what is said beside the `oneOf`; what it requires is never absent.
    """
    if len(branches) > MAX_BRANCHES or not all(isinstance(branch, dict) for branch in branches):
        return branches
    absent: list[set[str]] = [set() for _ in branches]
    for i, j in combinations(range(len(branches)), 2):
        if _exclude_one_another(branches[i], branches[j]):
            continue
        of_i = _only_in(branches[j], branches[i], around)
        of_j = _only_in(branches[i], branches[j], around)
        if of_i is None or of_j is None:
            return branches
        absent[i].add(of_i)
        absent[j].add(of_j)
    return [_without(branch, names) if names else branch for branch, names in zip(branches, absent, strict=True)]


def _only_in(branch: dict[str, Any], other: dict[str, Any], around: dict[str, Any]) -> str | None:
    """A property that branch requires and nothing else does; None: there is none, or one is not about objects."""
    if not (_is_about_objects(branch) and _is_about_objects(other)):
        return None
    others = {*_required(other), *_required(around)}
    return next((name for name in _required(branch) if name not in others), None)


def _without(branch: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """What is no object would satisfy every branch that only says what objects require."""
    properties = {**branch.get("properties", {}), **dict.fromkeys(sorted(names), False)}
    return {**branch, "type": "object", "properties": properties}


def _is_about_objects(branch: dict[str, Any]) -> bool:
    return _types(branch) == {"object"} or ("type" not in branch and bool(_required(branch)))


def _required(branch: dict[str, Any]) -> list[str]:
    required = branch.get("required")
    return [name for name in required if isinstance(name, str)] if isinstance(required, list) else []


def _exclude_one_another(one: Any, other: Any) -> bool:
    """Whether it can be seen at once."""
    if one is False or other is False:
        return True
    if not (isinstance(one, dict) and isinstance(other, dict)):
        return False
    first, second = _literals(one), _literals(other)
    if first is not None and second is not None:
        return not first & second
    if not _types(one) & _types(other):
        return True
    if _types(one) | _types(other) != {"object"}:
        return False
    names = {*_required(one), *_required(other)}
    mine, others = one.get("properties") or {}, other.get("properties") or {}
    return any(name in mine and name in others and _exclude_one_another(mine[name], others[name]) for name in names)


def _types(schema: dict[str, Any]) -> frozenset[str]:
    said = schema.get("type", _TYPES)
    types = frozenset([said] if isinstance(said, str) else said if isinstance(said, list) else _TYPES)
    return types | {"integer"} if "number" in types else types


def _literals(schema: dict[str, Any]) -> set[tuple[type, Any]] | None:
    """Each with its type, for true is not 1, although 1.0 is; None: not only simple ones."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or any(isinstance(value, dict | list) for value in values):
        return None
    return {
        (float if isinstance(value, int) and not isinstance(value, bool) else type(value), value) for value in values
    }

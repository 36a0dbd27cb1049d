"""JSON values into the dataclasses of `_types`, driven by their annotations.

Tolerant where servers differ (unknown fields; null where there is a default), strict where a wrong value would surface
far from its cause (missing fields, wrong types).
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ._exceptions import APIResponseError

T = TypeVar("T")
Convert = Callable[[Any], Any]
PRIMITIVES: tuple[type, ...] = (str, int, float, bool)


def decode(kind: type[T], data: Any) -> T:
    """Raises APIResponseError naming the place that does not fit."""
    try:
        value: T = _converter(kind)(data)
    except _MismatchError as mismatch:
        raise APIResponseError(f"unexpected answer: {mismatch}") from None
    return value


class _MismatchError(Exception):
    def __init__(self, expected: str, got: Any, path: str = "") -> None:
        super().__init__(expected, got, path)
        self.expected, self.got, self.path = expected, got, path

    def under(self, name: str) -> _MismatchError:
        return _MismatchError(self.expected, self.got, f"{name}.{self.path}" if self.path else name)

    def __str__(self) -> str:
        return f"{self.path or 'the body'} should be {self.expected}, not {str(self.got)[:80]!r}"


@cache
def _dataclass_converter(kind: Any) -> Convert:
    hints = get_type_hints(kind)
    known = [field for field in fields(kind) if "local" not in field.metadata]
    converters = {field.name: _converter(hints[field.name]) for field in known}
    required = {field.name for field in known if field.default is MISSING and field.default_factory is MISSING}
    nullable = {name for name, hint in hints.items() if type(None) in get_args(hint)}

    def convert(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _MismatchError("an object", data)
        values = {}
        for name, convert_field in converters.items():
            if name in data and (data[name] is not None or name in nullable):
                try:
                    values[name] = convert_field(data[name])
                except _MismatchError as mismatch:
                    raise mismatch.under(name) from None
            elif name in required:
                raise _MismatchError("present", data.get(name, "missing"), name)
        return kind(**values)

    return convert


def _converter(hint: Any) -> Convert:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return lambda value: value
    if origin in (Union, types.UnionType):
        return _union(arguments)
    if origin is tuple:
        return _sequence(_converter(arguments[0]))
    if origin is dict:
        return _mapping(_converter(arguments[1]))
    return _primitive(hint) if hint in PRIMITIVES else _dataclass_converter(hint)


def _union(arguments: tuple[Any, ...]) -> Convert:
    """`X | None`, or a choice of primitives."""
    some = [argument for argument in arguments if argument is not type(None)]
    convert = _converter(some[0]) if len(some) == 1 else _primitive(*some)
    return lambda value: None if value is None and len(some) < len(arguments) else convert(value)


def _sequence(convert: Convert) -> Convert:
    def convert_all(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise _MismatchError("a list", value)
        converted = []
        for index, item in enumerate(value):
            try:
                converted.append(convert(item))
            except _MismatchError as mismatch:
                raise mismatch.under(str(index)) from None
        return tuple(converted)

    return convert_all


def _mapping(convert: Convert) -> Convert:
    def convert_all(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _MismatchError("an object", value)
        return {key: convert(item) for key, item in value.items()}

    return convert_all


def _primitive(*kinds: type) -> Convert:
    expected = " or ".join(kind.__name__ for kind in kinds)

    def check(value: Any) -> Any:
        if type(value) in kinds:
            return value
        if float in kinds and type(value) is int:
            return float(value)
        raise _MismatchError(expected, value)

    return check

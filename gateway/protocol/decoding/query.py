"""Query parameters and form fields: text -> values. Raises InvalidRequestError that names the parameter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from gateway.protocol.errors import InvalidRequestError

_DIGITS = re.compile(r"[0-9]{1,18}")


def whole_number(fields: Mapping[str, str], name: str, *, default: int, low: int, high: int) -> int:
    text = fields.get(name, str(default))
    if not _DIGITS.fullmatch(text) or not low <= int(text) <= high:
        raise InvalidRequestError(
            f"Invalid value for '{name}': expected an integer between {low} and {high}.",
            param=name,
            code="invalid_value",
        )
    return int(text)


def choice(fields: Mapping[str, str], name: str, allowed: Sequence[str], *, default: str) -> str:
    text = fields.get(name, default)
    if text not in allowed:
        raise InvalidRequestError(
            f"Invalid value for '{name}': expected one of {', '.join(allowed)}.", param=name, code="invalid_value"
        )
    return text

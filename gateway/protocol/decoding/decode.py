"""Bytes -> validated request. Whatever is wrong becomes an InvalidRequestError that names the parameter."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gateway.protocol.decoding.allowed_values import allowed_values
from gateway.protocol.errors import InvalidRequestError, shortened

T = TypeVar("T")

# msgspec says where, at the end: "... - at `$.messages[0].role`", "... - at `key` in `$.logit_bias`". What comes before
# may quote a value of any length, so it is never searched.
_SEAM = " - at "
_LOCATION = re.compile(r"(?:`key` in )?`\$\.?(?P<path>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`")
_NOT_LISTED = "Invalid enum value"
_TYPES = re.compile(r"`([a-z]+(?: \| [a-z]+)*)`")
_WORDS = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "an array",
    "object": "an object",
}


def decode_json(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Raises InvalidRequestError."""
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), decoder) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("The body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply.", code="invalid_json") from None


def _invalid_value(report: str, decoder: msgspec.json.Decoder[Any]) -> InvalidRequestError:
    param: str | None = None
    reason, _, where = report.rpartition(_SEAM)
    if reason and (location := _LOCATION.fullmatch(where)):
        param = location["path"] or None
        report = reason
    report = shortened(report)
    if missing := _MISSING.match(report):
        param = f"{param}.{missing['field']}" if param else missing["field"]
        return InvalidRequestError(f"Missing required parameter: '{param}'.", param=param, code="missing_parameter")
    report = _TYPES.sub(_in_words, report).replace("Expected", "expected")
    if param is None:
        return InvalidRequestError(f"Invalid body: {report}.", code="invalid_type")
    if report.startswith(_NOT_LISTED) and (allowed := allowed_values(decoder.type, param)):
        report = f"expected one of {', '.join(allowed)}"
    return InvalidRequestError(f"Invalid value for '{param}': {report}.", param=param, code="invalid_value")


def _in_words(types: re.Match[str]) -> str:
    words = [_WORDS.get(name, name) for name in types[1].split(" | ") if name != "null"]
    return " or ".join(words)

"""Bytes -> validated request. Whatever is wrong becomes an InvalidRequestError that names the parameter."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec

from gateway.protocol.decoding.allowed_values import allowed_values
from gateway.protocol.decoding.long_strings import LONG_BYTES, decode_in_parts
from gateway.protocol.errors import InvalidRequestError, shortened

T = TypeVar("T")

# msgspec says where, at the end: "... - at `$.messages[0].role`", "... - at `key` in `$.logit_bias`". What comes before
# may quote a value of any length, so it is never searched.
_SEAM = " - at "
_LOCATION = re.compile(r"(?:`key` in )?`\$\.?(?P<path>[^`]*)`")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]+)`")
MAX_KEYS = 200  # characters that tell which keys are wrong
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])  # their values are skipped
_OF_A_KEY = "`key` in "
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
        return decoder.decode(body) if len(body) < LONG_BYTES else decode_in_parts(decoder, body)
    except msgspec.ValidationError as error:
        raise _invalid_value(str(error), decoder, body) from None
    except msgspec.DecodeError as error:
        raise InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json") from None
    except UnicodeDecodeError:
        raise InvalidRequestError("The body is not valid UTF-8.", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequestError("The body is nested too deeply.", code="invalid_json") from None


def _invalid_value(report: str, decoder: msgspec.json.Decoder[Any], body: bytes) -> InvalidRequestError:
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
    if where.startswith(_OF_A_KEY) and (keys := _odd_keys(body, param)):
        return InvalidRequestError(
            f"Invalid value for '{param}': its keys are token ids, which these are not: {keys}.",
            param=param,
            code="invalid_value",
        )
    if report.startswith(_NOT_LISTED) and (allowed := allowed_values(decoder.type, param)):
        report = f"expected one of {', '.join(allowed)}"
    return InvalidRequestError(f"Invalid value for '{param}': {report}.", param=param, code="invalid_value")


def _odd_keys(body: bytes, param: str) -> str:
    """Of a field of the body: those that are no token ids. What follows that field may be no JSON."""
    try:
        field = _fields.decode(body).get(param, msgspec.Raw(b"{}"))
        keys = list(_fields.decode(field))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return shortened(", ".join(f"'{key}'" for key in keys if not (key.isascii() and key.isdecimal())), MAX_KEYS)


def _in_words(types: re.Match[str]) -> str:
    words = [_WORDS.get(name, name) for name in types[1].split(" | ") if name != "null"]
    return " or ".join(words)

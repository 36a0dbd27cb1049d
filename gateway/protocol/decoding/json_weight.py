"""What decoding a JSON text costs, before it is decoded: values and names are counted, strings are passed over."""

from __future__ import annotations

from gateway.protocol.errors import InvalidRequestError

MAX_WEIGHT = 2**19  # about 50 ms of one core, and some ten MB
_WEIGHTS = ((b",", 1), (b":", 4), (b"{", 4), (b"[", 1))  # a number in a list, a named value, an object, a list
_SLICE_BYTES = 2**18  # looked at in one go; other threads run in between


def check_weight(body: bytes, most: int) -> None:
    """Raises InvalidRequestError."""
    if _weight(body, 0, len(body), most) > most and _weight_outside_strings(body, most) > most:
        raise InvalidRequestError(
            "The body holds too many values (messages, content parts, token ids or entries of objects): send fewer, or "
            "several requests.",
            code="too_many_values",
        )


def _weight(body: bytes, start: int, end: int, most: int) -> int:
    total = 0
    for first in range(start, end, _SLICE_BYTES):
        last = min(end, first + _SLICE_BYTES)
        total += sum(weight * body.count(mark, first, last) for mark, weight in _WEIGHTS)
        if total > most:
            break
    return total


def _weight_outside_strings(body: bytes, most: int) -> int:
    total, start = 0, 0
    while total <= most:
        quote = body.find(b'"', start)
        total += _weight(body, start, quote if quote >= 0 else len(body), most)
        if quote < 0:
            break
        total += 1
        start = _behind_string(body, quote + 1)
    return total


def _behind_string(body: bytes, start: int) -> int:
    while (quote := body.find(b'"', start)) >= 0:
        backslashes = 0
        while body[quote - 1 - backslashes] == 0x5C and quote - 1 - backslashes >= start:
            backslashes += 1
        start = quote + 1
        if backslashes % 2 == 0:
            return start
    return len(body)

"""Long strings of a JSON body are decoded in parts, so that other threads run in between.

Who decodes JSON holds the interpreter's lock until it is done: 8 ms for a body of 2 MB whose letters are escaped, in
which nobody's token is sent. Here the body is decoded with a stand-in for each long string, and the strings by parts
that take a fraction of a millisecond; then they are put where their stand-ins are.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")

LONG_BYTES = 2**18  # of a string as it is in the body
PART_BYTES = 2**15
MASKED_BYTES = 2**17  # at a time
STAND_IN_CHARACTERS = 8192  # more than any string may have whose length is limited
_REST_SECONDS = 0.0002  # before a part, for who needs this core: Linux would give it back at its clock's next tick
_KEPT_CHARACTERS = 256  # at its begin, for who looks whether it is a URL
_MASK = b"\xff\xfe"  # no bytes of JSON: in place of a backslash and the backslash or quote behind it
_ESCAPE_BYTES = 6  # \uXXXX
_string = msgspec.json.Decoder(str)


@dataclass(frozen=True, slots=True)
class _LongString:
    text: str
    raw: bytes  # with its quotes


def decode_in_parts(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """As decoder.decode(body). Raises what that does."""
    mark = f"<{secrets.token_hex(16)}>"
    try:
        short_body, strings = _shortened(body, mark)
        if not strings:
            return decoder.decode(body)
        value = decoder.decode(short_body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return decoder.decode(body)  # says what is wrong, of the body as it came
    restored: T = _restored(value, mark, strings)
    return restored


def _shortened(body: bytes, mark: str) -> tuple[bytes, list[_LongString]]:
    """Raises msgspec.DecodeError, UnicodeDecodeError."""
    if _MASK[0] in body or _MASK[1] in body:
        return body, []
    masked = b"".join(_masked(body))
    kept: list[bytes] = []
    strings: list[_LongString] = []
    end = 0
    for start, stop in _long_ranges(masked):
        text = "".join(_decoded(part) for part in _parts(body, masked, start, stop))
        kept += body[end : start - 1], msgspec.json.encode(_stand_in(text, mark, len(strings)))
        strings.append(_LongString(text, body[start - 1 : stop + 1]))
        end = stop + 1
    return b"".join([*kept, body[end:]]), strings


def _decoded(part: bytes) -> str:
    time.sleep(_REST_SECONDS)
    return _string.decode(b'"' + part + b'"')


def _masked(body: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(body):
        part = body[start : start + MASKED_BYTES]
        if (len(part) - len(part.rstrip(b"\\"))) % 2 == 1:
            part = part[:-1] or part  # what the last one escapes comes with the next part
        yield part.replace(b"\\\\", _MASK).replace(b'\\"', _MASK)
        start += len(part)


def _long_ranges(masked: bytes) -> Iterator[tuple[int, int]]:
    """Between the quotes of strings of LONG_BYTES or more: these cover a window in which there is no quote."""
    window = LONG_BYTES // 2
    is_inside, start = False, 0
    while start < len(masked):
        end = start + window
        num_quotes = masked.count(b'"', start, end)
        if num_quotes or not is_inside:
            is_inside ^= num_quotes % 2 == 1
            start = end
            continue
        first, last = masked.rfind(b'"', 0, start) + 1, masked.find(b'"', start)
        if last < 0:
            return
        if last - first >= LONG_BYTES:
            yield first, last
        is_inside, start = False, last + 1


def _parts(body: bytes, masked: bytes, start: int, stop: int) -> Iterator[bytes]:
    """Of a string, cut where neither an escape nor a character is cut."""
    while stop - start > PART_BYTES:
        cut = _cut(masked, start + PART_BYTES)
        yield body[start:cut]
        start = cut
    yield body[start:stop]


def _cut(masked: bytes, cut: int) -> int:
    """At or a little before it; anywhere in what is no UTF-8."""
    escape = masked.rfind(b"\\", cut - _ESCAPE_BYTES + 1, cut + 1)
    if escape >= 0:
        cut = escape
    cut -= next((i for i in range(4) if masked[cut - i] != _MASK[1] and masked[cut - i] & 0xC0 != 0x80), 0)
    if masked[cut : cut + 2] == b"\\u" and masked[cut + 2 : cut + 4].lower() in (b"dc", b"dd", b"de", b"df"):
        cut -= _ESCAPE_BYTES  # the second half of a pair stays with the first
    return cut


def _stand_in(text: str, mark: str, i: int) -> str:
    return f"{text[:_KEPT_CHARACTERS]}{mark}{i}".ljust(STAND_IN_CHARACTERS, ">")


def _restored(value: Any, mark: str, strings: list[_LongString]) -> Any:
    """`value`, changed in place where it can be, with the strings in place of what stands in for them."""
    if isinstance(value, str):
        return value if len(value) != STAND_IN_CHARACTERS else _text(value, mark, strings)
    if isinstance(value, msgspec.Raw):
        return _raw(value, mark, strings)
    if isinstance(value, list):
        value[:] = [_restored(item, mark, strings) for item in value]
    elif isinstance(value, dict):
        items = [(_restored(key, mark, strings), _restored(item, mark, strings)) for key, item in value.items()]
        value.clear()
        value.update(items)
    elif isinstance(value, msgspec.Struct):
        for name in value.__struct_fields__:
            old = getattr(value, name)
            new = _restored(old, mark, strings)
            if new is not old:
                msgspec.structs.force_setattr(value, name, new)
    return value


def _text(value: str, mark: str, strings: list[_LongString]) -> str:
    _, found, rest = value.partition(mark)
    return strings[int(rest.rstrip(">"))].text if found else value


def _raw(value: msgspec.Raw, mark: str, strings: list[_LongString]) -> msgspec.Raw:
    content = bytes(value)
    if mark.encode() not in content:
        return value
    for i, string in enumerate(strings):
        content = content.replace(msgspec.json.encode(_stand_in(string.text, mark, i)), string.raw)
    return msgspec.Raw(content)

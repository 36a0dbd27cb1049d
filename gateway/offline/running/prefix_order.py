"""In which order to feed a batch's rows, so that rows with equal beginnings come together.

The engine's pool groups what it sees, but it sees a window of the batch; 50,000 rows over shared documents in random
order show each window every document, and more documents than the cache holds. So the whole batch is put in order by a
cheap key per row: checksums of the prompt's first 128, 256, 512 ... bytes. Rows that begin alike have equal checksums
up to the last length that fits into what they share, at least half of it, and sorting brings them together, within a
document by the sections that they share, and so on.

The prompt is taken as it stands in the body, undecoded: rows of a file come from one program, and equal text is written
equally. Where it is not, only the order is worse.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType

FIRST_BYTES = 128
NUM_LENGTHS = 10  # 128 .. 65,536 bytes
_LENGTHS = [FIRST_BYTES << i for i in range(NUM_LENGTHS)]
_KEY_BYTES = 4  # of a checksum
_NONE = bytes(_KEY_BYTES)  # the prompt is not that long


class _Body(msgspec.Struct):
    messages: msgspec.Raw | UnsetType = UNSET
    prompt: msgspec.Raw | UnsetType = UNSET


_decoder = msgspec.json.Decoder(_Body)


def prefix_key(body: bytes) -> bytes:
    """Of a row's body; keys of equal length compare as bytes. A body that is no object counts as a prompt."""
    try:
        fields = _decoder.decode(body)
        prompt = fields.prompt if fields.messages is UNSET else fields.messages
        text = memoryview(body if prompt is UNSET else prompt)
    except msgspec.DecodeError:
        text = memoryview(body)
    key = bytearray()
    checksum, begin = 0, 0
    for end in _LENGTHS:
        if end > len(text):
            break
        checksum = zlib.crc32(text[begin:end], checksum)
        key += checksum.to_bytes(_KEY_BYTES, "big")
        begin = end
    return bytes(key.ljust(_KEY_BYTES * NUM_LENGTHS, b"\0"))


def order_by_prefix(keys: dict[int, bytes]) -> list[int]:
    """Row indices; rows with equal keys in order of index."""
    return [index for _, index in sorted((key, index) for index, key in keys.items())]


def num_shared(keys: dict[int, bytes], order: Sequence[int]) -> bytes:
    """Of each row of the order: how many lengths of its beginning the one before it has too. The first one: 0."""
    ends = range(_KEY_BYTES, _KEY_BYTES * NUM_LENGTHS + 1, _KEY_BYTES)
    found = bytearray(len(order))
    for position in range(1, len(order)):
        one, other = keys[order[position - 1]], keys[order[position]]
        length = 0
        for end in ends:
            part = other[end - _KEY_BYTES : end]
            if part == _NONE or part != one[end - _KEY_BYTES : end]:
                break
            length += 1
        found[position] = length
    return bytes(found)

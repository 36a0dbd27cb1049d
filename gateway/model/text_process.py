"""`python -m gateway.model.text_process` encodes large texts beside the gateway, in a small share of one core.

stdin: frames, each its length (4 bytes, big endian) and its bytes: first the tokenizer as JSON, then requests: a head
(REQUEST) and for ADD and END the next piece of a text in UTF-8. stdout: to each but FORGET one frame with the number of
tokens that the text has so far (LENGTH); to END and TAKE behind it up to PART_IDS of its ids as int32, from the number
on that the head gives. It ends with its input, or when it has had nothing to do for a while.
"""

from __future__ import annotations

import array
import io
import os
import select
import struct
import sys
from enum import IntEnum
from typing import IO, TYPE_CHECKING, Protocol

from schedcore.api.time_slice import giving_way

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LENGTH = struct.Struct(">I")
REQUEST = struct.Struct(">BQI")  # Step, number of the text, first of the ids that are asked for
TOKEN_IDS = "i"
PART_IDS = 4096  # a twentieth of a millisecond for whoever makes a list of them
NICENESS = 17  # a fiftieth of a core that somebody else wants, too, or less, as it rests; all of one that nobody does
_IDLE_SECONDS = 60.0  # then its memory is given back


class Step(IntEnum):
    ADD = 0
    END = 1  # the last piece
    TAKE = 2
    FORGET = 3


class Source(Protocol):
    def read(self, num_bytes: int, /) -> bytes | None: ...


def write_frame(stream: IO[bytes], content: bytes) -> None:
    stream.write(LENGTH.pack(len(content)))
    stream.write(content)
    stream.flush()


def read_frame(stream: Source) -> bytes | None:
    """None at the end, also where a frame is cut off."""
    head = _read(stream, LENGTH.size)
    return None if head is None else _read(stream, *LENGTH.unpack(head))


def _read(stream: Source, num_bytes: int) -> bytes | None:
    content = bytearray()
    while len(content) < num_bytes:
        part = stream.read(num_bytes - len(content))
        if not part:
            return None
        content += part
    return bytes(content)


class _Texts:
    """The ids of each that is not forgotten."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self._ids: dict[int, array.array[int]] = {}

    def answer(self, request: bytes) -> bytes | None:
        step, text, first = REQUEST.unpack_from(request)
        if step == Step.FORGET:
            self._ids.pop(text, None)
            return None
        ids = self._ids.setdefault(text, array.array(TOKEN_IDS))
        if step in (Step.ADD, Step.END):
            ids.extend(self._encoded(request[REQUEST.size :]))
        wanted = ids[first : first + PART_IDS] if step != Step.ADD else ids[:0]
        return LENGTH.pack(len(ids)) + wanted.tobytes()

    def _encoded(self, piece: bytes) -> list[int]:
        # One by one: a batch would take all cores.
        with giving_way():
            encoding = self._backend.encode(piece.decode("utf-8", "surrogatepass"), add_special_tokens=False)
            ids: list[int] = encoding.ids
            del encoding
            return ids


def main() -> int:
    os.nice(NICENESS)  # who reads tokens hardly notices, and a text gets done however busy the machine is
    from tokenizers import Tokenizer

    source, sink = io.FileIO(0), sys.stdout.buffer  # what is buffered, select() does not see
    serialised = read_frame(source)
    if serialised is None:
        return 1
    texts = _Texts(Tokenizer.from_str(serialised.decode()))
    while select.select([source], [], [], _IDLE_SECONDS)[0] and (request := read_frame(source)) is not None:
        answer = texts.answer(request)
        if answer is not None:
            write_frame(sink, answer)
    return 0


if __name__ == "__main__":
    sys.exit(main())

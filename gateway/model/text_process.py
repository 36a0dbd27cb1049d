"""`python -m gateway.model.text_process` encodes large texts beside the gateway, in a small share of one core.

stdin: frames, each its length (4 bytes, big endian) and its bytes: first the tokenizer as JSON, then texts in UTF-8.
stdout: one frame per text: its token ids as int32. It ends with its input, or
when it has had nothing to do for a while.
"""

from __future__ import annotations

import array
import io
import os
import select
import struct
import sys
from typing import IO, Protocol

from schedcore.api.time_slice import in_short_turns

LENGTH = struct.Struct(">I")
TOKEN_IDS = "i"
_IDLE_SECONDS = 60.0  # then its memory is given back
NICENESS = 17  # a fiftieth of a core that somebody else wants, too; all of one that nobody does


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


def main() -> int:
    os.nice(NICENESS)  # who reads tokens hardly notices, and a text gets done however busy the machine is
    from tokenizers import Tokenizer

    source, sink = io.FileIO(0), sys.stdout.buffer  # what is buffered, select() does not see
    serialised = read_frame(source)
    if serialised is None:
        return 1
    backend = Tokenizer.from_str(serialised.decode())
    while select.select([source], [], [], _IDLE_SECONDS)[0] and (text := read_frame(source)) is not None:
        # One by one: a batch would take all cores.
        with in_short_turns():
            encoding = backend.encode(text.decode("utf-8", "surrogatepass"), add_special_tokens=False)
            token_ids = array.array(TOKEN_IDS, encoding.ids).tobytes()
            del encoding
        write_frame(sink, token_ids)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What engines on different machines say to each other: msgpack, a message per frame, and blocks as they are.

An engine listens (block_server.py); whoever wants its blocks dials, says Greet, then asks, one question at a time. A
frame is its length in four bytes, little-endian, then a message. The answer to Pull is no message: for each key, in
their order, a record head, and where it says that the block is given, the block's bytes. Where both have windows
(block_window.py), blocks are staged and read instead, and two Stages may be asked at a time, one for each half.

Messages only gain fields that have a default, so that engines of neighbouring versions mix; where the bytes of a block
mean something else, fingerprints differ (schedcore/tiers/cache_fingerprint.py).
"""

from __future__ import annotations

import socket
import struct

import msgspec

from schedcore.tiers.block_digest import DIGEST_BYTES, KEY_BYTES
from schedcore.tiers.session_files import SessionName

MAX_FRAME_BYTES = 1 << 24  # of a message: the keys of a million tokens fit
MAX_PULLED_KEYS = 256  # in one Pull
RECORD_HEAD = struct.Struct("<B16s")  # whether the block is given, its digest
NOT_GIVEN = RECORD_HEAD.pack(0, bytes(DIGEST_BYTES))
_HEADER = struct.Struct("<I")


class PeerError(ConnectionError):
    """The other engine is gone, or is none that this one can use; the message says why."""


class Greet(msgspec.Struct, frozen=True, tag="greet"):
    """First message; answered by Welcomed or Refused. Blocks are of use under equal fingerprints and sizes only."""

    fingerprint: str
    block_bytes: int
    incarnation: str  # of the engine that is meant


class AskSession(msgspec.Struct, frozen=True, tag="session"):
    """Answered by SessionFound."""

    name: SessionName


class AskSessions(msgspec.Struct, frozen=True, tag="sessions"):
    """Answered by SessionNames."""

    max_num_sessions: int


class AskHeld(msgspec.Struct, frozen=True, tag="have"):
    """Answered by Held."""

    keys: bytes  # KEY_BYTES each


class Pull(msgspec.Struct, frozen=True, tag="pull"):
    """At most MAX_PULLED_KEYS; answered by as many records."""

    keys: bytes


class OpenWindow(msgspec.Struct, frozen=True, tag="window"):
    """Answered by WindowOpened, at once; asked again while that is without metadata."""


class Stage(msgspec.Struct, frozen=True, tag="stage"):
    """Into a half of the window, whose blocks from before are gone then; answered by Staged."""

    keys: bytes  # at most as many as there is room for
    half: int  # 0 or 1


class Welcomed(msgspec.Struct, frozen=True, tag="welcomed"):
    """Ask."""

    has_windows: bool = False  # OpenWindow, too


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The end of the connection."""

    reason: str


class SessionFound(msgspec.Struct, frozen=True, tag="session_found"):
    token_ids: bytes | None  # int32, little-endian, of its last request; None: it is unknown


class SessionNames(msgspec.Struct, frozen=True, tag="session_names"):
    names: list[SessionName]


class Held(msgspec.Struct, frozen=True, tag="held"):
    is_held: bytes  # one byte per key, 0 or 1


class WindowOpened(msgspec.Struct, frozen=True, tag="window_opened"):
    metadata: bytes  # of its agent; empty: it is not open yet
    address: int
    num_bytes: int  # 0: there will be none


class Staged(msgspec.Struct, frozen=True, tag="staged"):
    records: bytes  # a record head per key; a given block is at its index in the half

    @property
    def num_given(self) -> int:
        return sum(is_given for is_given, _ in RECORD_HEAD.iter_unpack(self.records))


Question = Greet | AskSession | AskSessions | AskHeld | Pull | OpenWindow | Stage
Answer = Welcomed | Refused | SessionFound | SessionNames | Held | WindowOpened | Staged

_encoder = msgspec.msgpack.Encoder()
_questions = msgspec.msgpack.Decoder(Question)
_answers = msgspec.msgpack.Decoder(Answer)


def decode_question(frame: bytes) -> Question:
    """Raises msgspec.DecodeError, msgspec.ValidationError, or UnicodeDecodeError."""
    question: Question = _questions.decode(frame)
    return question


def decode_answer(frame: bytes) -> Answer:
    """Raises msgspec.DecodeError, msgspec.ValidationError, or UnicodeDecodeError."""
    answer: Answer = _answers.decode(frame)
    return answer


def split_keys(keys: bytes) -> list[bytes]:
    """Raises PeerError."""
    if len(keys) % KEY_BYTES:
        raise PeerError(f"{len(keys)} bytes are no keys")
    return [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]


class BlockLine:
    """A blocking connection, with a limit on silence. Whatever it raises is an OSError, and the connection's end."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    def limit_silence(self, seconds: float) -> None:
        """From now on: a peer that says or takes nothing for so long raises TimeoutError."""
        self._socket.settimeout(seconds)

    def say(self, message: msgspec.Struct) -> None:
        frame = _encoder.encode(message)
        self._socket.sendall(_HEADER.pack(len(frame)) + frame)

    def send(self, data: bytes | bytearray | memoryview) -> None:
        self._socket.sendall(data)

    def hear(self) -> bytes:
        """A frame. Raises PeerError for what can be none."""
        (length,) = _HEADER.unpack(self.receive(_HEADER.size))
        if length > MAX_FRAME_BYTES:
            raise PeerError(f"a message of {length} bytes cannot be meant")
        return self.receive(length)

    def receive(self, num_bytes: int) -> bytes:
        data = bytearray(num_bytes)
        self.receive_into(memoryview(data))
        return bytes(data)

    def receive_into(self, view: memoryview) -> None:
        """Fills it. Raises PeerError at the connection's end."""
        while len(view):
            num = self._socket.recv_into(view)
            if not num:
                raise PeerError("the other engine has hung up")
            view = view[num:]

    def close(self) -> None:
        self._socket.close()

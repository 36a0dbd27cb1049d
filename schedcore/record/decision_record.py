"""The decision record: every call of a scheduler that can change its mind, and what came of it, in a file.

The scheduler is deterministic, so its calls and their arguments say all that it did. Results are stored as digests:
enough to notice the first decision that a replay takes differently (schedcore/record/replay.py), and small.

A record holds what users sent, as token ids. The file is readable by its owner alone. Cache salts are replaced by
digests under a key that is thrown away: they may come from clients, and only their equality matters.

The file is a line of text, then frames: length and CRC-32 of the payload (4 bytes each, little-endian), the payload as
msgpack. The first payload is the Header, each later one a call, the last one End if the scheduler was closed in order.
Frames reach the file before a step is executed, so that a crash loses none but those behind its last step's plan.
"""

from __future__ import annotations

import io
import logging
import os
import stat
import struct
import zlib
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from schedcore.record.recipe import Recipe

logger = logging.getLogger(__name__)

FORMAT = 1
MAGIC = b"hocket decision record\n"
BUFFER_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 30  # a longer one is no payload but a damaged length
_FRAME = struct.Struct("<II")  # length of the payload, its CRC-32


class RecordError(ValueError):
    """The file is no decision record, or none that this version can read."""


class Header(msgspec.Struct, frozen=True, tag="header"):
    format: int
    scheduler: Recipe
    plan_fields: list[str]  # whose digests a call's result holds, in this order
    output_fields: list[str]


class PlanResult(msgspec.Struct, frozen=True, array_like=True):
    """digests: 8 bytes per field; the counts are for people."""

    digests: bytes
    num_seqs: int
    num_tokens: int
    num_samples: int
    num_preempted: int


class OutputResult(msgspec.Struct, frozen=True, array_like=True):
    digests: bytes
    num_sampled: int
    num_finished: int


# Calls. `error` is the message of a CoreError; there is no result then. Token ids are int32, little-endian.


class AddCall(msgspec.Struct, frozen=True, array_like=True, tag="add"):
    request_id: int
    prompt_token_ids: bytes
    options: dict[str, Any]  # the keyword arguments that were given
    result: str | None  # name of the AddStatus
    error: str | None = None


class AbortCall(msgspec.Struct, frozen=True, array_like=True, tag="abort"):
    request_id: int
    result: bool | None
    error: str | None = None


class ForceCall(msgspec.Struct, frozen=True, array_like=True, tag="force"):
    request_id: int
    token_ids: bytes
    result: bool | None
    error: str | None = None


class SuggestCall(msgspec.Struct, frozen=True, array_like=True, tag="suggest"):
    request_id: int
    token_ids: bytes
    result: bool | None
    error: str | None = None


class ScheduleCall(msgspec.Struct, frozen=True, array_like=True, tag="schedule"):
    now: float  # seconds
    result: PlanResult | None
    error: str | None = None


class CommitCall(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    sampled_token_ids: bytes
    now: float  # seconds
    result: OutputResult | None
    error: str | None = None


class ResetCall(msgspec.Struct, frozen=True, array_like=True, tag="reset"):
    result: int | None  # blocks dropped from the prefix cache
    error: str | None = None


class MovesCall(msgspec.Struct, frozen=True, array_like=True, tag="moves"):
    done: list[int]
    failed: list[int]
    result: None = None
    error: str | None = None


class DiskCall(msgspec.Struct, frozen=True, array_like=True, tag="disk"):
    """note_on_disk() or forget_on_disk()."""

    keys: bytes  # uint64 pairs, little-endian
    is_there: bool
    result: None = None
    error: str | None = None


class AdviseCall(msgspec.Struct, frozen=True, array_like=True, tag="advise"):
    session_id: str
    event: int
    now: float  # seconds
    options: dict[str, Any]  # the keyword arguments that were given
    result: list[Any] | None
    error: str | None = None


class RememberCall(msgspec.Struct, frozen=True, array_like=True, tag="remember"):
    session_id: str
    token_ids: bytes
    options: dict[str, Any]  # the keyword arguments that were given
    result: bool | None
    error: str | None = None


class PeerCall(msgspec.Struct, frozen=True, array_like=True, tag="peer"):
    """Of the methods about peers that name no session."""

    method: str
    keys: bytes | None  # uint64 pairs, little-endian
    numbers: list[float]  # the other arguments
    result: bytes | None = None  # int32
    error: str | None = None


class PeerSessionCall(msgspec.Struct, frozen=True, array_like=True, tag="peer_session"):
    """adopt_session(), or pull_session() where there are no token ids."""

    session_id: str
    token_ids: bytes | None
    options: dict[str, Any]  # the keyword arguments that were given
    result: int | None
    error: str | None = None


class AdviceResult(msgspec.Struct, frozen=True, array_like=True):
    digest: bytes  # of all that was advised; the counts are for people
    num_granted: int
    num_tokens: int
    num_admitted: int
    num_preempted: int


class AdvisorCall(msgspec.Struct, frozen=True, array_like=True, tag="advisor"):
    """Of an Advisor, whose engine keeps its own memory (schedcore/record/recording_advisor.py)."""

    method: str
    arguments: list[Any]  # arrays of int32 as bytes
    options: dict[str, Any]  # the keyword arguments that were given
    result: AdviceResult | int | None
    error: str | None = None


class End(msgspec.Struct, frozen=True, array_like=True, tag="end"):
    """Nothing was called afterwards."""


SchedulerCall = (
    AddCall
    | AbortCall
    | ForceCall
    | SuggestCall
    | ScheduleCall
    | CommitCall
    | ResetCall
    | MovesCall
    | DiskCall
    | AdviseCall
    | RememberCall
    | PeerCall
    | PeerSessionCall
)
Call = SchedulerCall | AdvisorCall  # a record has those of one kind
_Frame = Call | End


def _as_plain(value: Any) -> Any:
    """NumPy's numbers are taken where Python's are."""
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"{type(value).__name__} in a decision record")


_encoder = msgspec.msgpack.Encoder(enc_hook=_as_plain)
_header_decoder = msgspec.msgpack.Decoder(Header)
_frame_decoder: msgspec.msgpack.Decoder[_Frame] = msgspec.msgpack.Decoder(_Frame)


def check_new(path: Path) -> None:
    """Raises ValueError if a record cannot be written there."""
    if path.exists() or path.is_symlink():
        raise ValueError(f"the decision record {path} exists already: remove it or name another file")
    if not path.parent.is_dir():
        raise ValueError(f"the decision record {path} cannot be written: there is no folder {path.parent}")


class RecordWriter:
    """Appends frames to a new file. A disk that fails ends the record, not the engine."""

    def __init__(self, path: Path, header: Header) -> None:
        """Raises ValueError if the file exists or cannot be written."""
        check_new(path)
        self._path = path
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
        except OSError as error:
            raise ValueError(f"the decision record {path} cannot be written: {error.strerror}") from None
        self._file: io.BufferedWriter | None = io.BufferedWriter(io.FileIO(descriptor, "wb"), BUFFER_BYTES)
        self._file.write(MAGIC)
        self._write(_encoder.encode(header))
        self.flush()

    def append(self, call: Call) -> None:
        self._write(_encoder.encode(call))

    def flush(self) -> None:
        """Hands everything to the operating system."""
        if self._file is not None:
            try:
                self._file.flush()
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Idempotent."""
        if self._file is not None:
            self._write(_encoder.encode(End()))
            self.flush()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, payload: bytes) -> None:
        if self._file is not None:
            try:
                self._file.write(_FRAME.pack(len(payload), zlib.crc32(payload)))
                self._file.write(payload)
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        logger.error("the decision record %s ends here: %s", self._path, error)
        file, self._file = self._file, None
        if file is not None:
            file.raw.close()  # without the buffer, which would try to write again


class Ending(Enum):
    """How a record ends."""

    CLOSED = "closed"
    OPEN = "open"  # after a whole frame: the engine still runs, or was killed
    CUT_OFF = "cut off"  # within a frame
    DAMAGED = "damaged"  # what follows is no frame, and not read


class RecordReader:
    """Reads a record, also one that is still being written. Use it in a `with` statement."""

    def __init__(self, path: Path) -> None:
        """Raises RecordError, OSError."""
        self.path = path
        self.num_bytes = path.stat().st_size
        self.num_read_bytes = 0  # up to the end of the last whole frame
        self.ending: Ending | None = None  # known once calls() has ended
        self._file = path.open("rb")
        try:
            self.header = self._read_header()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> RecordReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def calls(self) -> Iterator[Call]:
        """In order, as far as they are whole."""
        while (payload := self._read_payload()) is not None:
            try:
                frame = _frame_decoder.decode(payload)
            except msgspec.DecodeError:
                self.ending = Ending.DAMAGED
                return
            self.num_read_bytes += _FRAME.size + len(payload)
            if isinstance(frame, End):
                self.ending = Ending.CLOSED
                return
            yield frame

    def _read_header(self) -> Header:
        if self._file.read(len(MAGIC)) != MAGIC:
            raise RecordError(f"{self.path} is no decision record")
        payload = self._read_payload()
        if payload is None:
            raise RecordError(f"{self.path} is no decision record: its header is {self._ending_in_words()}")
        try:
            found = msgspec.msgpack.decode(payload).get("format")
            header = _header_decoder.decode(payload) if found == FORMAT else None
        except (msgspec.DecodeError, AttributeError) as error:
            raise RecordError(f"{self.path} is no decision record: {error}") from None
        if header is None:
            raise RecordError(f"{self.path} is a record of format {found}; this version reads format {FORMAT}")
        self.num_read_bytes = len(MAGIC) + _FRAME.size + len(payload)
        return header

    def _read_payload(self) -> bytes | None:
        """None at the end, which is then known."""
        start = self._file.read(_FRAME.size)
        if len(start) < _FRAME.size:
            self.ending = Ending.CUT_OFF if start else Ending.OPEN
            return None
        length, checksum = _FRAME.unpack(start)
        payload = self._file.read(length) if length <= MAX_PAYLOAD_BYTES else b""
        if len(payload) == length and zlib.crc32(payload) == checksum:
            return payload
        self.ending = Ending.CUT_OFF if len(payload) < length <= MAX_PAYLOAD_BYTES else Ending.DAMAGED
        return None

    def _ending_in_words(self) -> str:
        return "missing" if self.ending in (Ending.OPEN, None) else str(self.ending.value)

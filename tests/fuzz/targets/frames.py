"""What comes over the line between gateway and engine: frames however they are cut, messages whatever they say."""

from __future__ import annotations

import socket
import struct

import msgspec

from fuzz.cursor import Cursor
from schedcore.api.frame_socket import FrameSocket
from schedcore.api.types import Advisory, EngineRequest
from schedcore.api.wire import Advise, Submit, decode_to_engine, decode_to_gateway, encode
from schedcore.serving.request_check import find_problem

VOCAB_SIZE = 1000


def check(data: bytes) -> None:
    cursor = Cursor(data)
    if cursor.below(2):
        _check_stream(cursor)
    else:
        _check_message(cursor.rest())


def _check_message(frame: bytes) -> None:
    """What decodes means the same when it is sent again; what the engine's door lets in is in range."""
    for decode in (decode_to_engine, decode_to_gateway):
        try:
            message = decode(frame)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
        again = decode(encode(message))
        assert encode(again) == encode(message)
        if isinstance(message, Submit):
            _check_door(message.request)
        if isinstance(message, Advise):
            assert isinstance(message.advisory, Advisory)


def _check_door(request: EngineRequest) -> None:
    if find_problem(request, VOCAB_SIZE) is None:
        assert all(0 <= token < VOCAB_SIZE for token in request.prompt_token_ids)
        assert 0 < request.sampling.top_p <= 1
        assert 0 <= request.sampling.temperature < float("inf")


def _check_stream(cursor: Cursor) -> None:
    """Frames arrive whole and in order, however the bytes of the line are cut."""
    near, far = socket.socketpair()
    reader = FrameSocket(near)
    sent: list[bytes] = []
    received: list[bytes] = []
    line = b""
    while not cursor.is_empty and len(line) < 8192:
        frame = cursor.chunk()
        sent.append(frame)
        line += struct.pack("<I", len(frame)) + frame
    try:
        at, step = 0, 1 + len(line) // 7
        while at < len(line):
            far.sendall(line[at : at + step])
            at += step
            received += map(bytes, reader.receive())
            step = 1 + step * 5 % 97
        for _ in range(len(sent) + 1):
            received += map(bytes, reader.receive())
        assert received == sent
    finally:
        reader.close()
        far.close()

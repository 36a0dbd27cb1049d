"""Server-sent events."""

from __future__ import annotations

from gateway.protocol.errors import ApiError

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",  # nginx would hold tokens back otherwise
}
DONE = b"data: [DONE]\n\n"
KEEPALIVE = b": keep-alive\n\n"  # a comment; clients ignore it


def event(data: bytes) -> bytes:
    return b"data: %b\n\n" % data


def named_event(name: str, data: bytes) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def error_event(error: ApiError) -> bytes:
    return event(error.body())

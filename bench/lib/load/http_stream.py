"""A minimal HTTP/1.1 client connection that costs a few microseconds per piece of a streamed body.

The load generator shares the server's cores: what it burns is taken from the server. So while a response streams in,
pieces are put aside with their times and nothing else is done; what they say is read when the response is complete. It
reads what completions servers send: a status line, headers, and a body that is chunked or has a length; no TLS,
redirects or compression.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import cast
from urllib.parse import urlsplit

_NONE: Mapping[str, str] = MappingProxyType({})
_LAST_CHUNK = b"0\r\n\r\n"


class HttpResponse:
    """What came, as it came: bytes and, for each piece, when and how far the response then was."""

    def __init__(self) -> None:
        self.status = 0
        self._raw = bytearray()
        self._times: list[float] = []
        self._ends: list[int] = []  # of the pieces, in _raw
        self._body_start = 0
        self._length: int | None = None  # None: chunked

    def add(self, now: float, data: bytes) -> bool:
        """True once the response is complete. Raises ValueError if it is not HTTP."""
        self._raw += data
        self._times.append(now)
        self._ends.append(len(self._raw))
        if not self.status and not self._read_head():
            return False
        if self._length is not None:
            return len(self._raw) >= self._body_start + self._length
        # the bytes may stand inside a body too, so the chunks have the last word
        return self._raw.endswith(_LAST_CHUNK) and self._has_last_chunk()

    @property
    def num_pieces(self) -> int:
        """Reads that it took to receive it."""
        return len(self._times)

    def body(self) -> bytes:
        return b"".join(bytes(self._raw[start:end]) for start, end in self._spans())

    def events(self) -> list[tuple[float, bytes]]:
        """Server-sent events, without the empty line after each, and when their last byte came."""
        events, rest, piece = [], b"", 0
        for start, end in self._spans():
            while self._ends[piece] < end:
                piece += 1
            *complete, rest = (rest + self._raw[start:end]).split(b"\n\n")
            events += [(self._times[piece], bytes(event)) for event in complete]
        return events

    def _read_head(self) -> bool:
        """True once status line and headers are there."""
        end = self._raw.find(b"\r\n\r\n")
        if end < 0:
            return False
        status_line, *lines = self._raw[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(":") for x in lines)}
        if not status_line.startswith("HTTP/1."):
            raise ValueError(f"not an HTTP response: {status_line[:80]}")
        self.status = int(status_line.split()[1])
        self._body_start = end + 4
        if "chunked" not in headers.get("transfer-encoding", ""):
            self._length = int(headers.get("content-length", "0"))
        return True

    def _spans(self) -> Iterator[tuple[int, int]]:
        """Where in _raw the body lies, chunk by chunk."""
        if self._length is not None:
            yield self._body_start, self._body_start + self._length
            return
        for start, end in self._chunks():
            if start < end:
                yield start, end

    def _has_last_chunk(self) -> bool:
        return any(start == end for start, end in self._chunks())

    def _chunks(self) -> Iterator[tuple[int, int]]:
        """Those that are there as a whole, with the line break after each; the last chunk of all is empty."""
        raw, at = self._raw, self._body_start
        while (line_end := raw.find(b"\r\n", at)) > 0:
            size = int(raw[at:line_end].partition(b";")[0], 16)
            start = line_end + 2
            at = start + size + 2
            if at > len(raw):
                return
            yield start, start + size
            if not size:
                return


class HttpStream(asyncio.Protocol):
    """One kept-alive connection, one request at a time. Not usable any more once `is_closed`."""

    def __init__(self, host: str, headers: Mapping[str, str] = _NONE) -> None:
        self._host = host
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self.is_closed = False
        self._complete: asyncio.Future[None] | None = None
        self._response = HttpResponse()

    @classmethod
    async def connect(cls, base_url: str, headers: Mapping[str, str] = _NONE) -> HttpStream:
        """`headers` go with every request. Raises OSError if nobody listens there."""
        address = urlsplit(base_url)
        loop = asyncio.get_running_loop()
        _, stream = await loop.create_connection(
            lambda: cls(address.netloc, headers), address.hostname or "", address.port or 80
        )
        return stream

    async def request(self, method: str, path: str, body: bytes) -> HttpResponse:
        """The response, complete.

        Raises ConnectionError if the connection ends before the response does, ValueError if it is not HTTP.
        """
        if self.is_closed or self._complete is not None:
            raise ConnectionError("connection is closed or in use")
        self._response = HttpResponse()
        self._complete = asyncio.get_running_loop().create_future()
        head = f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n{self._headers}"
        self._transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        try:
            await self._complete
        except BaseException:
            self.close()  # half a response is left in the connection
            raise
        finally:
            self._complete = None
        return self._response

    def close(self) -> None:
        self.is_closed = True
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's derive from nothing

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        if self._complete is not None and not self._complete.done():
            self._complete.set_exception(ConnectionError(f"connection ended before the response: {error or 'closed'}"))

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._complete is None or self._complete.done():
            return
        try:
            if self._response.add(now, data):
                self._complete.set_result(None)
        except ValueError as error:
            self._complete.set_exception(error)

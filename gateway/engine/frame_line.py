"""A frame socket on the event loop: frames are handed over as they arrive, and what a peer does not read waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from schedcore.api.frame_socket import FrameSocket


class FrameLine:
    """Open from the beginning until `close()`, or until the peer has ended it."""

    def __init__(
        self,
        connection: FrameSocket,
        on_frames: Callable[[list[bytes]], None],
        on_end: Callable[[ConnectionError], None],
    ) -> None:
        """on_end: called once, when the peer has ended it: a FrameError where it spoke something else."""
        self._socket: FrameSocket | None = connection
        self._on_frames, self._on_end = on_frames, on_end
        loop = asyncio.get_running_loop()
        loop.add_reader(connection.fileno(), self.read)
        loop.call_soon(self.read)  # the end of a handshake may have brought more than that

    @property
    def is_open(self) -> bool:
        return self._socket is not None

    def send(self, frame: bytes) -> None:
        """A peer that is gone is noticed by reading. Raises ValueError for a frame that is too long."""
        if self._socket is None:
            return
        try:
            self._socket.send(frame)
        except ConnectionError:
            return
        if self._socket.has_unsent:
            asyncio.get_running_loop().add_writer(self._socket.fileno(), self._on_writable)

    def read(self) -> bool:
        """Hands over what has arrived by now. False: nothing has."""
        if self._socket is None:
            return False
        try:
            frames = self._socket.receive()
        except ConnectionError as error:
            self.close()
            self._on_end(error)
            return False
        if frames:
            self._on_frames(frames)
        return bool(frames)

    def close(self) -> None:
        """Idempotent."""
        if self._socket is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._socket = None

    def _on_writable(self) -> None:
        assert self._socket is not None
        loop = asyncio.get_running_loop()
        try:
            self._socket.flush()
        except ConnectionError:
            loop.remove_writer(self._socket.fileno())
            return
        if not self._socket.has_unsent:
            loop.remove_writer(self._socket.fileno())

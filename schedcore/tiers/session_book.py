"""The session book: what the core remembers of sessions, kept for a later life of the engine (session_files.py).

Written behind: the engine's loop leaves what there is to write, and a thread writes it. While the thread cannot keep
up, a session's newer tokens take the place of its older ones; beyond MAX_WAITING_BYTES the oldest are left out, and
counted. That a session is to be forgotten is never left out.

The book is a help for advisories and nothing more: what cannot be read or written is a warning.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from schedcore.tiers.session_files import Int32, SessionFiles, SessionName

logger = logging.getLogger(__name__)

MAX_WAITING_BYTES = 16 << 20  # in memory, for the thread
CLOSE_SECONDS = 10.0  # that what waits may take when the engine stops
ENTRY_BYTES = 1024  # that a session's name takes there, about


class SessionBook:
    """recall(), note(), forget() and close() are one thread's, in this order."""

    def __init__(self, files: SessionFiles) -> None:
        self._files = files
        self._waiting: dict[SessionName, Int32 | None] = {}  # oldest first; None: to be forgotten
        self._num_waiting_bytes = 0
        self._writing: SessionName | None = None
        self._more = threading.Condition()  # guards all of the waiting
        self._is_closing = False
        self._is_failing = False
        self.num_left_out = 0
        self._thread = threading.Thread(target=self._run, name="session book", daemon=True)
        self._thread.start()

    def recall(self) -> Iterator[tuple[SessionName, Int32]]:
        """The sessions of earlier lives, and the tokens of each one's last request; oldest first."""
        return self._files.recall()

    def note(self, name: SessionName, token_ids: Int32) -> None:
        """A request of the session has ended. Does not wait."""
        with self._more:
            self._leave(name, token_ids)
            if self._num_waiting_bytes > MAX_WAITING_BYTES:
                self._leave_out()
            self._more.notify()

    def forget(self, name: SessionName) -> None:
        """Does not wait. Of names that the book does not have nothing is kept, however many there are."""
        with self._more:
            if name in self._waiting or name == self._writing or self._files.has(name):
                self._leave(name, None)
                self._more.notify()

    def close(self) -> None:
        """Writes what waits, for a bounded time."""
        with self._more:
            self._is_closing = True
            self._more.notify()
        self._thread.join(CLOSE_SECONDS)

    def _leave(self, name: SessionName, token_ids: Int32 | None) -> None:
        self._take(name)
        self._waiting[name] = token_ids
        self._num_waiting_bytes += _waiting_bytes(token_ids)

    def _take(self, name: SessionName) -> Int32 | None:
        if name not in self._waiting:
            return None
        token_ids = self._waiting.pop(name)
        self._num_waiting_bytes -= _waiting_bytes(token_ids)
        return token_ids

    def _leave_out(self) -> None:
        """The oldest, but for the newest of all."""
        notes = [name for name, token_ids in self._waiting.items() if token_ids is not None]
        for name in notes[:-1]:
            if self._num_waiting_bytes <= MAX_WAITING_BYTES:
                return
            self._take(name)
            self.num_left_out += 1
            if self.num_left_out == 1:
                logger.warning("the disk is slow: sessions are left out of the book that a restarted engine reads")

    def _run(self) -> None:
        while True:
            with self._more:
                self._writing = None
                self._more.wait_for(lambda: self._waiting or self._is_closing)
                if not self._waiting:
                    return
                name = self._writing = next(iter(self._waiting))
                token_ids = self._take(name)
            self._carry_out(name, token_ids)

    def _carry_out(self, name: SessionName, token_ids: Int32 | None) -> None:
        try:
            if token_ids is None:
                self._files.remove(name)
            else:
                self._files.write(name, token_ids)
        except OSError as error:
            if not self._is_failing:  # one line until it works again
                what = "written to" if token_ids is not None else "taken out of"
                logger.warning("a session was not %s the book of sessions: %s", what, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False


def _waiting_bytes(token_ids: Int32 | None) -> int:
    return ENTRY_BYTES + (0 if token_ids is None else token_ids.nbytes)

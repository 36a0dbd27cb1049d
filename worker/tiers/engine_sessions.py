"""The engine's side of the session book: what the core knows of sessions goes there, and comes back at the start."""

from __future__ import annotations

import logging
from typing import Protocol

from schedcore._core import Scheduler
from schedcore.tiers.session_book import SessionBook
from schedcore.tiers.session_files import SessionName

logger = logging.getLogger(__name__)


class Sessions(Protocol):
    """What the engine tells of sessions; None is that of a request without one."""

    def note_end(self, name: SessionName | None) -> None:
        """A request of the session has ended, and the core knows what it computed."""

    def forget(self, name: SessionName) -> None:
        """The session is over."""

    def close(self) -> None: ...


class NoBook:
    """Sessions are known for as long as the core lives."""

    def note_end(self, name: SessionName | None) -> None:
        pass

    def forget(self, name: SessionName) -> None:
        pass

    def close(self) -> None:
        pass


class BookedSessions:
    def __init__(self, core: Scheduler, book: SessionBook) -> None:
        """Tells the core of the sessions of an earlier life."""
        self._core, self._book = core, book
        num_known = 0
        for name, token_ids in book.recall():
            num_known += core.remember_session(name.session_id, token_ids, tenant=name.tenant, cache_salt=name.salt)
        logger.info("%d sessions are known from an earlier life", num_known)

    def note_end(self, name: SessionName | None) -> None:
        if name is None:
            return
        token_ids = self._core.session_tokens(name.session_id, tenant=name.tenant, cache_salt=name.salt)
        if len(token_ids) > 0:
            self._book.note(name, token_ids)

    def forget(self, name: SessionName) -> None:
        self._book.forget(name)

    def close(self) -> None:
        self._book.close()

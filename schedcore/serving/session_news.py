"""What each gateway has not seen: sessions whose requests and advisories other gateways sent to this engine.

A gateway knows where it sent a session itself. Of the others it hears from the engines, with their statistics: so it
sends the next turn to the session's home, whichever gateway had the last one. One that connects later hears of the
last MAX_SESSIONS.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from schedcore.api.session_digest import session_digest
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest
from schedcore.api.wire import SessionNote

MAX_SESSIONS = 8192  # that are remembered
MAX_AT_ONCE = 512  # in one message
_ANNOUNCING = (AdvisoryEvent.TYPING, AdvisoryEvent.AGENT_STEP)


@dataclass(slots=True)
class _Known:
    gateway: bytes  # that sent it last
    number: int  # of the event
    note: SessionNote


class SessionNews:
    def __init__(self) -> None:
        self._known: OrderedDict[int, _Known] = OrderedDict()  # by digest, in order of events
        self._told: dict[bytes, int] = {}  # number of the last event that a gateway was told, or need not be
        self._num_events = 0

    def note_request(self, gateway: bytes, request: EngineRequest) -> None:
        """It has come: from now on the session's cache is here."""
        digest = session_digest(request.tenant, request.cache_salt, request.session_id)
        if digest:
            self._note(gateway, SessionNote(digest, len(request.prompt_token_ids)))

    def note_advisory(self, gateway: bytes, advisory: Advisory) -> None:
        """Its request is expected here."""
        if advisory.event in _ANNOUNCING:
            digest = session_digest(advisory.tenant, advisory.cache_salt, advisory.session_id)
            self._note(gateway, SessionNote(digest, len(advisory.draft_token_ids), is_expected=True))

    def has_more(self, gateway: bytes) -> bool:
        return self._told.get(gateway, 0) < self._num_events

    def take(self, gateway: bytes) -> list[SessionNote]:
        """What it does not know, the oldest first, MAX_AT_ONCE at most."""
        told = self._told.get(gateway, 0)
        found: list[SessionNote] = []
        later = []
        for known in reversed(self._known.values()):
            if known.number <= told:
                break
            later.append(known)
        for known in reversed(later):
            if len(found) == MAX_AT_ONCE:
                return found
            self._told[gateway] = known.number
            if known.gateway != gateway:
                found.append(known.note)
        self._told[gateway] = self._num_events
        return found

    def forget(self, gateway: bytes) -> None:
        """It is gone."""
        self._told.pop(gateway, None)

    def _note(self, gateway: bytes, note: SessionNote) -> None:
        if not self.has_more(gateway):
            self._told[gateway] = self._num_events + 1
        self._num_events += 1
        self._known[note.digest] = _Known(gateway, self._num_events, note)
        self._known.move_to_end(note.digest)
        if len(self._known) > MAX_SESSIONS:
            self._known.popitem(last=False)

"""Sessions of an engine that is about to go, taken over: what it knows of them, and their blocks into our host tier.

One order is many questions to one peer, all on that peer's thread: whose sessions, what tokens, which blocks. What it
says goes to the core as it comes. When all is said and all pulls have ended, the order is answered.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from schedcore._core import Scheduler
from schedcore.api import wire
from schedcore.peers.block_transport import PeerBlocks
from schedcore.routing.route import session_digest
from schedcore.tiers.session_files import MAX_NUM_SESSIONS, Int32, SessionName
from worker.tiers.peer_pulls import PeerPulls
from worker.tiers.tier_moves import UInt64

_TURNS = 2  # of the loop, after which what was decided in the one before is on its way

KeysOf = Callable[[str, Int32], UInt64]


@dataclass(slots=True)
class _Adoption:
    gateway: bytes
    request_id: int
    number: int  # of the peer
    num_blocks_left: int  # that may still be pulled: our own sessions keep theirs
    sessions: list[tuple[int, int]] = field(default_factory=list)  # digest, tokens
    num_turns: int = 0  # that are left, once all is said
    is_over: bool = False


class SessionAdoptions:
    """The engine loop's, but for post()."""

    def __init__(self, core: Scheduler, pulls: PeerPulls, keys_of: KeysOf, max_num_blocks: int) -> None:
        """max_num_blocks: that one order may pull."""
        self.keys_of = keys_of
        self._core, self._pulls, self._max_num_blocks = core, pulls, max_num_blocks
        self._open: list[_Adoption] = []
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def num_open(self) -> int:
        return len(self._open)

    def begin(self, gateway: bytes, order: wire.Adopt) -> bool:
        """False: nobody can be asked; there is no answer."""
        number = self._pulls.number(order.source, self._core.forget_peer)
        if number is None:
            return False
        one = _Adoption(gateway, order.request_id, number, self._max_num_blocks)
        if not self._pulls.ask(number, _ListTask(self, one, order)):
            return False
        self._open.append(one)
        return True

    def post(self, event: Callable[[], None]) -> None:
        """From any thread: to be called in the loop's next turn."""
        self._events.put(event)
        self._pulls.wake()

    def serve(self) -> None:
        """In every turn."""
        while not self._events.empty():
            self._events.get()()
        for one in self._open:
            one.num_turns = max(0, one.num_turns - 1)
            if one.num_turns == 1 and not self._pulls.ask(one.number, _EndTask(self, one)):
                self.end(one)

    def take(self) -> list[tuple[bytes, wire.Adopted]]:
        """Answers."""
        over = [one for one in self._open if one.is_over]
        self._open = [one for one in self._open if not one.is_over]
        return [(one.gateway, wire.Adopted(one.request_id, one.sessions)) for one in over]

    # ---- what tasks post ----

    def adopt(self, one: _Adoption, name: SessionName, token_ids: Int32, keys: UInt64) -> None:
        """keys: of the blocks that the peer has."""
        named = {"tenant": name.tenant, "cache_salt": name.salt}
        known = self._core.session_tokens(name.session_id, **named)
        if len(token_ids) > len(known) and not self._core.adopt_session(name.session_id, token_ids, **named):
            return
        one.sessions.append((session_digest(name.tenant, name.salt, name.session_id), len(token_ids)))
        if 0 < len(keys) <= one.num_blocks_left:
            self._core.note_on_peer(keys, one.number)
            one.num_blocks_left -= self._core.pull_session(name.session_id, **named)

    def end_telling(self, one: _Adoption) -> None:
        one.num_turns = _TURNS + 1

    def end(self, one: _Adoption) -> None:
        one.is_over = True


class _ListTask:
    def __init__(self, owner: SessionAdoptions, one: _Adoption, order: wire.Adopt) -> None:
        self._owner, self._one, self._order = owner, one, order

    def run(self, peer: PeerBlocks) -> None:
        for name in peer.recent_sessions(MAX_NUM_SESSIONS):
            digest = session_digest(name.tenant, name.salt, name.session_id)
            if digest % max(1, self._order.count) == self._order.index:
                self._take(peer, name)
        self._owner.post(partial(self._owner.end_telling, self._one))

    def fail(self, *, is_refused: bool) -> None:
        self._owner.post(partial(self._owner.end_telling, self._one))

    def _take(self, peer: PeerBlocks, name: SessionName) -> None:
        found = peer.session_tokens(name)
        if found is None or len(found) % 4:
            return
        token_ids = np.frombuffer(found, "<i4").astype(np.int32)
        keys = self._owner.keys_of(name.salt, token_ids)
        held = peer.held([key.tobytes() for key in keys])
        num_held = held.index(False) if False in held else len(held)
        self._owner.post(partial(self._owner.adopt, self._one, name, token_ids, keys[:num_held]))


class _EndTask:
    """Behind all pulls that were begun before."""

    def __init__(self, owner: SessionAdoptions, one: _Adoption) -> None:
        self._owner, self._one = owner, one

    def run(self, peer: PeerBlocks) -> None:
        self._owner.post(partial(self._owner.end, self._one))

    def fail(self, *, is_refused: bool) -> None:
        self._owner.post(partial(self._owner.end, self._one))

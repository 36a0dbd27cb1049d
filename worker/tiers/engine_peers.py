"""The engine loop's side of its peers: what they are asked before a message is heeded, and what they are given.

A message that names a source waits here until the peer has said what it has: an advisory for the session's tokens and
which of its blocks are there, a request for which blocks of its prompt are. Then the core knows, and decides: what is
worth it comes by fetches, as from the disk. The peer's silence costs a request WAIT_SECONDS and nothing else.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from schedcore import _core
from schedcore._core import Scheduler
from schedcore.api import wire
from schedcore.api.types import AdvisoryEvent
from schedcore.peers.block_server import BlockServer
from schedcore.peers.block_transport import PeerBlocks
from schedcore.peers.loop_calls import LoopCalls
from schedcore.tiers.session_files import Int32, SessionName
from worker.tiers.peer_pulls import PeerPulls
from worker.tiers.session_adoptions import SessionAdoptions
from worker.tiers.tier_moves import UInt64

WAIT_SECONDS = 0.5  # that a message waits for a peer's word

logger = logging.getLogger("worker")
Waiting = wire.Submit | wire.Advise


@dataclass(slots=True)
class _Held:
    gateway: bytes
    message: Waiting
    since: float
    is_known: bool = False  # what the peer has, or that it says nothing


@dataclass(frozen=True, slots=True)
class _Word:
    """What a peer has said."""

    number: int  # of the peer
    keys: UInt64  # [n, 2], of the blocks that it has, from the first one on without a gap
    name: SessionName | None = None
    token_ids: Int32 | None = None
    result: str = ""  # of a session's move


class EnginePeers:
    """All but its tasks is the engine loop's."""

    def __init__(
        self,
        core: Scheduler,
        pulls: PeerPulls,
        calls: LoopCalls,
        fingerprint: str,
        block_size: int,
        server: BlockServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """server: is closed with this."""
        self.server = server
        self._core, self._pulls, self._calls = core, pulls, calls
        self._fingerprint, self._block_size, self._clock = fingerprint, block_size, clock
        self._held: dict[int, _Held] = {}  # by a number of their own, in order
        self._num_asked = 0
        self._words: queue.SimpleQueue[tuple[int, _Word]] = queue.SimpleQueue()
        self._moves: Counter[str] = Counter()  # of sessions, by result
        self._adoptions = SessionAdoptions(core, pulls, self.keys_of, pulls.num_slots // 2)
        self._pull_seconds = 0.0

    # ---- what the server of gateways calls ----

    @property
    def endpoint(self) -> str:
        return self.server.endpoint

    @property
    def num_held(self) -> int:
        return len(self._held) + self._adoptions.num_open

    def hold(self, gateway: bytes, message: Waiting) -> bool:
        """False: it does not wait for a peer's word."""
        source = message.request.source if isinstance(message, wire.Submit) else message.advisory.source
        if source is None or not self._concerns_cache(message):
            return False
        number = self._pulls.number(source, self._core.forget_peer)
        if number is None:
            return False
        self._num_asked += 1
        asked = self._num_asked
        if not self._pulls.ask(number, self._task(asked, number, message)):
            return False
        self._held[asked] = _Held(gateway, message, self._clock())
        return True

    def drop(self, gateway: bytes, request_id: int) -> bool:
        """Whether that request was held; it is no longer."""
        for asked, held in self._held.items():
            message = held.message
            is_request = isinstance(message, wire.Submit) and message.request.request_id == request_id
            if held.gateway == gateway and is_request:
                del self._held[asked]
                return True
        return False

    def drop_all(self, gateway: bytes) -> None:
        self._held = {asked: held for asked, held in self._held.items() if held.gateway != gateway}

    def take(self) -> list[tuple[bytes, Waiting]]:
        """Those that need wait no longer, in the order in which they came."""
        self._take_words()
        now = self._clock()
        ready = [a for a, held in self._held.items() if held.is_known or now - held.since > WAIT_SECONDS]
        return [self._release(self._held.pop(asked), now) for asked in ready]

    def adopt(self, gateway: bytes, order: wire.Adopt) -> bool:
        """False: it cannot be."""
        return self._adoptions.begin(gateway, order)

    def take_adopted(self) -> list[tuple[bytes, wire.Adopted]]:
        return self._adoptions.take()

    # ---- what the tiers call ----

    def serve(self) -> None:
        """In every turn."""
        self._calls.serve()
        self._take_words()
        self._adoptions.serve()
        for number, num_bytes, seconds in self._pulls.take_rates():
            self._core.note_peer_rate(number, num_bytes / seconds)
            self._pull_seconds += seconds

    def counts(self) -> dict[str, Any]:
        """Fields of EngineStats."""
        return {
            "pull_seconds": self._pull_seconds,
            "num_session_moves": dict(self._moves),
            "num_given_blocks": self.server.num_given_blocks,
            "num_refused_peers": self.server.num_refused,
        }

    def close(self) -> None:
        self._calls.close()
        self.server.close()

    # ---- asking ----

    def _concerns_cache(self, message: Waiting) -> bool:
        if isinstance(message, wire.Submit):
            return len(message.request.prompt_token_ids) > self._block_size
        return message.advisory.event in (AdvisoryEvent.TYPING, AdvisoryEvent.AGENT_STEP)

    def _task(self, asked: int, number: int, message: Waiting) -> _AskTask:
        if isinstance(message, wire.Submit):
            request = message.request
            ids = np.array(request.prompt_token_ids[:-1], np.int64).astype(np.int32)
            return _AskTask(self, asked, number, request.cache_salt, None, ids)
        advisory = message.advisory
        name = SessionName(advisory.tenant, advisory.cache_salt, advisory.session_id)
        return _AskTask(self, asked, number, advisory.cache_salt, name, None)

    def keys_of(self, salt: str, token_ids: Int32) -> UInt64:
        """[n, 2]: of the complete blocks. For any thread."""
        return _core.block_keys(self._fingerprint, salt, token_ids, self._block_size)

    def say(self, asked: int, word: _Word) -> None:
        """For any thread."""
        self._words.put((asked, word))
        self._pulls.wake()

    # ---- what was said ----

    def _take_words(self) -> None:
        """Also those that nobody waits for any longer: the blocks may still be of use."""
        while not self._words.empty():
            asked, word = self._words.get()
            self._heed(word)
            if asked in self._held:
                self._held[asked].is_known = True

    def _heed(self, word: _Word) -> None:
        if word.result:
            self._moves[word.result] += 1
        if word.name is not None and word.token_ids is not None:
            name = word.name
            named = {"tenant": name.tenant, "cache_salt": name.salt}
            known = self._core.session_tokens(name.session_id, **named)
            if len(word.token_ids) > len(known):  # otherwise the source is behind
                self._core.adopt_session(name.session_id, word.token_ids, **named)
        if len(word.keys):
            self._core.note_on_peer(word.keys, word.number)

    def _release(self, held: _Held, now: float) -> tuple[bytes, Waiting]:
        message = held.message
        if isinstance(message, wire.Submit):
            waited_ms = (now - held.since) * 1e3
            request = message.request
            age_ms, pause_ms = request.age_ms + waited_ms, request.pause_ms + waited_ms
            message = wire.Submit(msgspec.structs.replace(request, age_ms=age_ms, pause_ms=pause_ms, source=None))
        else:
            message = wire.Advise(msgspec.structs.replace(message.advisory, source=None))
        return held.gateway, message


class _AskTask:
    """What a peer has of a session, or of a prompt."""

    def __init__(
        self, peers: EnginePeers, asked: int, number: int, salt: str, name: SessionName | None, ids: Int32 | None
    ) -> None:
        self._peers, self._asked, self._number = peers, asked, number
        self._salt, self._name, self._ids = salt, name, ids

    def run(self, peer: PeerBlocks) -> None:
        ids = self._ids
        if self._name is not None:
            found = peer.session_tokens(self._name)
            ids = None if found is None or len(found) % 4 else np.frombuffer(found, "<i4").astype(np.int32)
        if ids is None:
            self._say("unknown")
            return
        keys = self._peers.keys_of(self._salt, ids)
        held = peer.held([key.tobytes() for key in keys])
        num_held = held.index(False) if False in held else len(held)
        result = "" if self._name is None else "found" if num_held else "dropped"
        self._peers.say(self._asked, _Word(self._number, keys[:num_held], self._name, ids, result))

    def fail(self, *, is_refused: bool) -> None:
        self._say("refused" if is_refused else "failed")

    def _say(self, result: str) -> None:
        nothing = np.empty((0, 2), np.uint64)
        self._peers.say(self._asked, _Word(self._number, nothing, result=result if self._name is not None else ""))

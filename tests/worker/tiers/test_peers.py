"""Two engines, each with a host tier: what one has computed the other one pulls, and says the same tokens.

Over TCP, and where it is installed over NIXL (`make test-nixl`).
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from fakes.engine_driver import GATEWAY, GREEDY, make_engine, output_tokens, run
from fakes.eventually import wait_until
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import Advisory, AdvisoryEvent, EngineRequest, PeerSource, SessionAction, SessionState
from schedcore.peers import block_window
from schedcore.peers.block_transport import NIXL, TCP, PeerBlocks
from schedcore.peers.nixl_window import NixlWindow, has_nixl
from schedcore.peers.tcp_transport import TcpPeer
from schedcore.peers.window_transport import WindowPeer
from schedcore.routing.route import session_digest
from worker.process.engine import Engine
from worker.process.engine_process import build_peered_engine
from worker.process.peer_setup import PeerOptions
from worker.tiers.engine_peers import WAIT_SECONDS, EnginePeers

PROMPT = random.Random(1).choices(range(VOCAB_SIZE), k=200)
SETTINGS = {
    "dtype": "float32",
    "device": "cpu",
    "num_threads": 1,
    "max_num_seqs": 8,
    "cache_memory_bytes": 500 << 10,
    "host_cache_bytes": 4 << 20,
    "max_model_len": 320,
    "block_size": 4,
    "max_num_batched_tokens": 64,
    "restore": "always",  # whatever the steps of a tiny model take
}
SECONDS = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


class Peered:
    """An engine with peers. While it lends, a thread takes its turns."""

    def __init__(self, folder: Path, incarnation: str, transport: str = TCP, **settings: Any) -> None:
        options = PeerOptions("tcp://127.0.0.1:0", None, incarnation, lambda: None, transport)
        config = EngineConfig(model=str(folder), **{**SETTINGS, **settings})
        self.engine: Engine
        self.peers: EnginePeers
        self.engine, self.peers = build_peered_engine(config, time.monotonic(), options)
        self.source = PeerSource(self.peers.endpoint, incarnation)

    @contextlib.contextmanager
    def lending(self) -> Iterator[PeerSource]:
        is_over = threading.Event()

        def turns() -> None:
            while not is_over.wait(0.002):
                self.engine.step()

        thread = threading.Thread(target=turns)
        thread.start()
        try:
            yield self.source
        finally:
            is_over.set()
            thread.join()

    def turn(self, prompt: list[int], session: str = "chat", source: PeerSource | None = None, salt: str = "") -> Any:
        request = EngineRequest(1, prompt, 12, GREEDY, session_id=session, source=source, cache_salt=salt)
        if source is not None and self.peers.hold(GATEWAY, wire.Submit(request)):
            [(_, waited)] = self._taken()
            assert isinstance(waited, wire.Submit)
            request = waited.request
        answer = run(self.engine, [request])
        self.settle()
        return output_tokens(answer)[0]

    def advise(self, source: PeerSource, session: str = "chat", salt: str = "") -> SessionState:
        advisory = Advisory(session, AdvisoryEvent.TYPING, cache_salt=salt, source=source)
        assert self.peers.hold(GATEWAY, wire.Advise(advisory))
        [(_, waited)] = self._taken()
        assert isinstance(waited, wire.Advise)
        state = self.engine.advise(waited.advisory)
        self.settle()
        return state

    def settle(self) -> None:
        while self.engine.step():
            self.engine.check_invariants()

    def _taken(self) -> list[tuple[bytes, wire.Submit | wire.Advise]]:
        found: list[tuple[bytes, wire.Submit | wire.Advise]] = []

        def is_there() -> bool:
            self.engine.step()
            found.extend(self.peers.take())
            return bool(found)

        wait_until(is_there, SECONDS)
        return found


needs_nixl = pytest.mark.skipif(not has_nixl(), reason="NIXL is not installed here: make test-nixl")


@pytest.fixture(params=[TCP, pytest.param(NIXL, marks=needs_nixl)])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Over NIXL from the first block on: pulls wait until it is open."""
    try_windows = WindowPeer.try_windows

    def wait_for_windows(peer: WindowPeer) -> bool:
        wait_until(lambda: try_windows(peer) or peer.has_failed, SECONDS)
        return not peer.has_failed

    monkeypatch.setattr(WindowPeer, "try_windows", wait_for_windows)
    name: str = request.param
    return name


@pytest.fixture
def pair(folder: Path, transport: str) -> Iterator[tuple[Peered, Peered]]:
    a, b = Peered(folder, "a", transport), Peered(folder, "b", transport)
    yield a, b
    b.engine.close()
    a.engine.close()


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> list[list[int]]:
    """Two turns on an engine without any cache."""
    engine = make_engine(folder, enable_prefix_caching=False)
    first = output_tokens(run(engine, [EngineRequest(1, PROMPT, 12, GREEDY)]))[0]
    second = output_tokens(run(engine, [EngineRequest(2, [*PROMPT, *first, 7], 12, GREEDY)]))[0]
    return [first, second]


def test_an_advised_session_moves_and_its_next_turn_finds_it(
    pair: tuple[Peered, Peered], undisturbed: list[list[int]]
) -> None:
    a, b = pair
    first = a.turn(PROMPT)
    with a.lending() as source:
        state = b.advise(source)
    assert (state.is_known, state.action, state.num_tokens) == (True, SessionAction.PREFETCH, 211)
    second = b.turn([*PROMPT, *first, 7])
    assert [first, second] == undisturbed
    stats = b.engine.stats()
    assert stats.num_pulled_blocks == 52
    assert stats.num_unpulled_blocks == 0
    assert stats.num_hit_tokens[0] >= 208  # it was on the device before the turn
    assert stats.num_session_moves == {"found": 1}
    assert stats.pull_seconds > 0
    given = a.engine.stats()
    assert given.num_given_blocks == 52
    assert given.num_sessions == 1, "it is copied, not moved away"
    assert a.turn([*PROMPT, *first, 7]) == second
    assert a.engine.stats().num_hit_tokens[0] >= 208


def test_a_request_with_a_source_pulls_what_it_needs(pair: tuple[Peered, Peered], undisturbed: list[list[int]]) -> None:
    a, b = pair
    first = a.turn(PROMPT)
    with a.lending() as source:
        second = b.turn([*PROMPT, *first, 7], source=source)
    assert [first, second] == undisturbed
    assert b.engine.stats().num_pulled_blocks == 52
    assert sum(b.engine.stats().num_hit_tokens[1:]) >= 208


def test_a_peer_that_dies_in_the_middle_costs_time_and_nothing_else(
    pair: tuple[Peered, Peered], transport: str, undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    first = a.turn(PROMPT)
    kind: type[TcpPeer] | type[WindowPeer] = WindowPeer if transport == NIXL else TcpPeer
    pull, num_given = kind.pull, 0

    def dying_pull(peer: Any, *arguments: Any) -> Iterator[bool]:
        nonlocal num_given
        for is_done in pull(peer, *arguments):
            num_given += 1
            yield is_done
            if num_given == 20:
                raise ConnectionResetError

    monkeypatch.setattr(kind, "pull", dying_pull)
    with a.lending() as source:
        b.advise(source)
    assert [first, b.turn([*PROMPT, *first, 7])] == undisturbed
    stats = b.engine.stats()
    assert stats.num_unpulled_blocks > 0
    assert stats.num_pulled_blocks + stats.num_unpulled_blocks == 52
    assert stats.num_pulled_blocks >= 20


def test_damaged_blocks_are_computed(
    pair: tuple[Peered, Peered], undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = pair
    first = a.turn(PROMPT)
    with a.lending() as source:
        for giver in ("block_server", "block_window"):
            monkeypatch.setattr(f"schedcore.peers.{giver}.block_digest", lambda key, block: bytes(16))
        b.advise(source)
    assert [first, b.turn([*PROMPT, *first, 7])] == undisturbed
    assert b.engine.stats().num_unpulled_blocks == 52
    assert b.engine.stats().num_pulled_blocks == 0


def test_nothing_is_had_of_another_model_another_layout_or_an_engine_that_has_ended(
    folder: Path, tmp_path: Path, undisturbed: list[list[int]]
) -> None:
    a = Peered(folder, "a")
    first = a.turn(PROMPT)
    others = [
        (Peered(folder, "b", block_size=8), a.source),
        (Peered(write_checkpoint(tmp_path / "other", seed=5), "c"), a.source),
        (Peered(folder, "d"), PeerSource(a.source.endpoint, "ended")),
    ]
    with a.lending():
        for b, source in others:
            assert not b.advise(source).is_known
            assert b.engine.stats().num_session_moves == {"refused": 1}
            assert b.engine.stats().num_pulled_blocks == 0
    assert a.engine.stats().num_refused_peers == 3
    assert a.engine.stats().num_given_blocks == 0
    with a.lending():
        assert others[0][0].turn([*PROMPT, *first, 7], source=a.source) == undisturbed[1]
    for peered, _ in (*others, (a, None)):
        peered.engine.close()


def test_under_another_salt_nothing_is_found(pair: tuple[Peered, Peered], undisturbed: list[list[int]]) -> None:
    a, b = pair
    first = a.turn(PROMPT, salt="one")
    with a.lending() as source:
        assert not b.advise(source, salt="other").is_known
        assert b.engine.stats().num_session_moves == {"unknown": 1}
        assert b.turn([*PROMPT, *first, 7], source=source, salt="other") == undisturbed[1]
        assert b.engine.stats().num_pulled_blocks == 0
        assert b.advise(source, salt="one").is_known


def test_a_peer_that_is_not_there_holds_a_request_for_a_bounded_time(
    folder: Path, undisturbed: list[list[int]]
) -> None:
    b = Peered(folder, "b")
    try:
        start = time.monotonic()
        assert b.turn(PROMPT, source=PeerSource("tcp://127.0.0.1:1", "a")) == undisturbed[0]
        assert b.turn(PROMPT, source=PeerSource("no endpoint", "a")) == undisturbed[0]
        assert time.monotonic() - start < SECONDS + 2 * WAIT_SECONDS
    finally:
        b.engine.close()


def test_the_sessions_of_an_engine_that_goes_are_taken_over(
    pair: tuple[Peered, Peered], undisturbed: list[list[int]]
) -> None:
    a, b = pair
    first = a.turn(PROMPT)
    for session in ("other", "third"):
        a.turn(PROMPT[: 100 + len(session)], session)
    answers: list[wire.Adopted] = []

    def is_answered() -> bool:
        b.engine.step()
        answers.extend(answer for _, answer in b.peers.take_adopted())
        return len(answers) == 2

    with a.lending() as source:
        for index in (0, 1):
            assert b.peers.adopt(GATEWAY, wire.Adopt(index, source, index, 2))
        wait_until(is_answered, SECONDS)
    taken = [session for answer in answers for session in answer.sessions]
    digests = {session_digest("", "", name) for name in ("chat", "other", "third")}
    assert {digest for digest, _ in taken} == digests
    assert (session_digest("", "", "chat"), 211) in taken
    for answer in answers:
        assert all(digest % 2 == answer.request_id for digest, _ in answer.sessions)
    stats = b.engine.stats()
    assert stats.num_sessions == 3
    assert stats.num_leases == 0
    assert stats.num_pulled_blocks >= 52
    assert b.peers.num_held == 0
    assert b.turn([*PROMPT, *first, 7]) == undisturbed[1]
    assert sum(b.engine.stats().num_hit_tokens[1:]) >= 208


def test_an_engine_that_is_gone_already_leaves_nothing_and_is_not_waited_for(folder: Path) -> None:
    b = Peered(folder, "b")
    assert b.peers.adopt(GATEWAY, wire.Adopt(7, PeerSource("tcp://127.0.0.1:1", "a"), 0, 1))
    answers: list[tuple[bytes, wire.Adopted]] = []

    def is_answered() -> bool:
        b.engine.step()
        answers.extend(b.peers.take_adopted())
        return bool(answers)

    wait_until(is_answered, SECONDS)
    assert answers == [(GATEWAY, wire.Adopted(7, []))]
    b.engine.close()


@needs_nixl
@pytest.mark.parametrize("whose", ["giver", "reader"])
@pytest.mark.parametrize("transport", [NIXL], indirect=True)
def test_a_process_of_nixl_that_is_killed_in_the_middle_costs_time_and_nothing_else(
    whose: str, pair: tuple[Peered, Peered], undisturbed: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_window, "WINDOW_BYTES", 64 << 10)  # several reads
    a, b = pair
    first = a.turn(PROMPT)
    read, num_reads = NixlWindow.read, 0

    def killing_read(window: NixlWindow, pieces: Sequence[tuple[int, int, int]]) -> None:
        nonlocal num_reads
        num_reads += 1
        if num_reads == 2:
            [other] = [child for child in psutil.Process().children() if child.pid != window.pid]
            (other if whose == "giver" else psutil.Process(window.pid)).kill()
            psutil.wait_procs([other], 0.2 if whose == "giver" else 0)
        read(window, pieces)

    monkeypatch.setattr(NixlWindow, "read", killing_read)
    with a.lending() as source:
        b.advise(source)
    assert [first, b.turn([*PROMPT, *first, 7])] == undisturbed
    stats = b.engine.stats()
    assert num_reads >= 2
    assert stats.num_pulled_blocks > 0
    assert stats.num_pulled_blocks + stats.num_unpulled_blocks == 52
    assert stats.num_unpulled_blocks > 0
    salted = a.turn(PROMPT, "other", salt="other")
    assert salted == first
    with a.lending() as source:  # over TCP from now on
        assert b.turn([*PROMPT, *first, 7], "other", source, "other") == undisturbed[1]
    assert num_reads == 2
    assert b.engine.stats().num_pulled_blocks >= 52


class SilentPeer:
    """A PeerBlocks that says nothing until it is interrupted."""

    def __init__(self) -> None:
        self._is_over = threading.Event()

    def held(self, keys: object) -> list[bool]:
        self._is_over.wait(SECONDS)
        raise ConnectionResetError

    session_tokens = recent_sessions = pull = held  # type: ignore[assignment]

    def interrupt(self) -> None:
        self._is_over.set()

    def close(self) -> None:
        pass


def test_messages_do_not_wait_for_a_silent_peer(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = Peered(folder, "b")
    silent: PeerBlocks = SilentPeer()
    monkeypatch.setattr(b.peers._pulls._transport, "connect", lambda source: silent)
    now = [0.0]
    b.peers._clock = lambda: now[0]
    source = PeerSource("tcp://127.0.0.1:1", "a")
    for number in range(4):
        assert b.peers.hold(GATEWAY, wire.Submit(EngineRequest(number, PROMPT, 4, GREEDY, source=source)))
    assert b.peers.take() == []
    assert b.peers.drop(GATEWAY, 2)
    assert not b.peers.drop(GATEWAY, 2)
    now[0] += WAIT_SECONDS + 0.001
    taken = b.peers.take()
    assert [message.request.request_id for _, message in taken] == [0, 1, 3]  # type: ignore[union-attr]
    assert all(message.request.age_ms > 1e3 * WAIT_SECONDS for _, message in taken)  # type: ignore[union-attr]
    assert b.peers.hold(b"other", wire.Submit(EngineRequest(0, PROMPT, 4, GREEDY, source=source)))
    b.peers.drop_all(b"other")
    assert b.peers.num_held == 0
    b.engine.close()

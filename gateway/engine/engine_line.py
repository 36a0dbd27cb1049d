"""What a gateway and one engine say to each other, wherever it runs: requests there, deltas and answers back."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from gateway.engine.delta_stream import DeltaRouter, DeltaStream
from gateway.engine.engine_answers import EngineAnswers
from gateway.engine.engine_client import EngineDeadError
from gateway.engine.frame_line import FrameLine
from gateway.engine.heartbeat import Heartbeat
from schedcore.api import wire
from schedcore.api.frame_socket import FrameError, FrameSocket
from schedcore.api.types import (
    Advisory,
    CacheReset,
    EngineInfo,
    EngineRequest,
    EngineStats,
    ErrorCode,
    SessionState,
    TokenDelta,
)

ADVISE_SECONDS = 2.0  # that an engine may take to answer an advisory; a long step delays it
RESET_SECONDS = 30.0  # the same of a reset of its cache, for which whoever measures is ready to wait

_log = logging.getLogger("hocket.gateway")
OnAdopted = Callable[[list[tuple[int, int]]], None]  # digests and tokens of sessions


class EngineLine:
    """One connection to one engine. Once dead it stays dead; every request that was open has its final delta by then.

    What it cannot judge is its owner's: `on_useless(reason)`, an engine that hangs or speaks something else, and
    `on_hung_up()`, one that has ended the connection or is about to.
    """

    def __init__(
        self, timeout_seconds: float, on_useless: Callable[[str], None], on_hung_up: Callable[[], None]
    ) -> None:
        """timeout_seconds: of silence, after which a ready engine has hung; 0: never."""
        self.router = DeltaRouter(self._abort)
        self.settled = asyncio.Event()  # ready or dead
        self.dead = asyncio.Event()
        self.death: str | None = None
        self.last_stats: EngineStats | None = None
        self.tenants: list[wire.TenantNote] = []  # of other gateways, as it last said
        self._served: Counter[str] = Counter()
        self._sessions: list[wire.SessionNote] = []
        self._arrivals: list[tuple[float, wire.ArrivalNote]] = []
        self._num_others = 0  # requests that it had then, beyond those of this line
        self.incarnation = ""
        self.num_heard = 0  # messages
        self.num_stale = 0  # messages of another process than the one that was ready here
        self._info: EngineInfo | None = None
        self._answers = EngineAnswers[SessionState]()
        self._resets = EngineAnswers[CacheReset]()
        self._adoptions: dict[int, OnAdopted] = {}  # by request id
        self._on_useless, self._on_hung_up = on_useless, on_hung_up
        self._timeout_seconds = timeout_seconds
        self._heartbeat = Heartbeat(timeout_seconds, self.read, self._ask, self._on_silence)
        self._frames: FrameLine | None = None
        self._has_hung_up = False
        self._end_code = ErrorCode.ENGINE_DEAD  # what its end is to requests

    @property
    def info(self) -> EngineInfo:
        self._check_alive()
        assert self._info is not None
        return self._info

    @property
    def is_alive(self) -> bool:
        return self._info is not None and self.death is None and not self._has_hung_up

    @property
    def was_ready(self) -> bool:
        return self._info is not None

    @property
    def num_open(self) -> int:
        """Requests that the engine has: this line's are counted as they end, others as the engine last said."""
        return self._num_others + self.router.num_open

    @property
    def is_attached(self) -> bool:
        return self._frames is not None

    def attach(self, connection: FrameSocket, hello: wire.Hello | None = None) -> None:
        """Says Hello."""
        self._frames = FrameLine(connection, self._on_frames, self._on_end)
        self.send(hello or wire.Hello())

    def detach(self) -> None:
        """Hangs up. Idempotent."""
        if self._frames is not None:
            self._frames.close()

    def stream(self, requests: Sequence[EngineRequest], opened: DeltaStream | None = None) -> DeltaStream:
        """opened: a stream that waits for these requests already, elsewhere. Raises EngineDeadError."""
        self._check_alive()
        frames = [wire.encode(wire.Submit(request)) for request in requests]  # raises before anything is open
        stream = self.router.open([request.request_id for request in requests], opened)
        try:
            for frame in frames:
                self.send_frame(frame)
        except BaseException:
            stream.close()
            raise
        return stream

    async def advise(self, advisory: Advisory) -> SessionState:
        self._check_alive()
        self.send(wire.Advise(advisory))
        return await self._answers.wait_for(advisory.request_id, ADVISE_SECONDS)

    def adopt(self, order: wire.Adopt, on_adopted: OnAdopted) -> None:
        """on_adopted: is called once, with nothing if the engine dies first."""
        self._adoptions[order.request_id] = on_adopted
        self.send(order)

    async def reset_prefix_cache(self, request_id: int) -> CacheReset:
        self._check_alive()
        self.send(wire.ResetCache(request_id))
        return await self._resets.wait_for(request_id, RESET_SECONDS)

    def send(self, message: wire.ToEngine) -> None:
        self.send_frame(wire.encode(message))

    def send_frame(self, frame: bytes) -> None:
        """Nothing is sent before the engine listens, or once it is gone."""
        if self._frames is not None:
            self._frames.send(frame)

    def read(self) -> bool:
        """Takes in what has arrived by now. False: nothing has."""
        return self._frames is not None and self._frames.read()

    def die(self, reason: str, *, is_expected: bool = False) -> None:
        """Idempotent; the first reason counts."""
        self._heartbeat.stop()
        if self.death is None:
            self.death = reason
            if self._info is not None and not is_expected:
                _log.error("%s Open requests: %d", reason, self.router.num_open)
            self.settled.set()
            self.dead.set()
            self.router.fail_all(self._end_code, reason)
            self._answers.fail_all(reason)
            self._resets.fail_all(reason)
            adoptions, self._adoptions = self._adoptions, {}
            for on_adopted in adoptions.values():
                on_adopted([])

    def move_all(self, reason: str) -> None:
        """What may go on elsewhere ends here with ErrorCode.MOVED."""
        self.read()  # what the engine has said counts
        self.router.move_all(reason)

    def take_in(self, messages: list[wire.ToGateway]) -> None:
        """Steps that came together are passed on together: while we are behind, a connection gets one write for all."""
        deltas: list[TokenDelta] = []
        for message in messages:
            if isinstance(message, wire.Deltas):
                deltas += message.deltas
            else:
                self.router.dispatch(deltas)
                deltas = []
                self._on_message(message)
        self.router.dispatch(deltas)

    def take_sessions(self) -> list[wire.SessionNote]:
        """Of which the engine has told since the last call: other gateways sent them there."""
        found, self._sessions = self._sessions, []
        return found

    def take_arrivals(self) -> list[tuple[float, wire.ArrivalNote]]:
        """Seconds ago that each request came to another gateway: what the engine has told since the last call."""
        found, self._arrivals = self._arrivals, []
        return found

    def take_served(self) -> Counter[str]:
        """Offline tokens that other gateways' tenants were served, as the engine has told since the last call."""
        found, self._served = self._served, Counter()
        return found

    def _check_alive(self) -> None:
        if self.death is not None:
            raise EngineDeadError(self.death)
        if self._info is None:
            raise EngineDeadError("The engine is starting.", code="starting")
        if self._has_hung_up:
            raise EngineDeadError("The engine has hung up.")

    def _abort(self, request_id: int) -> None:
        if self.is_alive:
            self.send(wire.Abort(request_id))

    def _on_frames(self, frames: list[bytes]) -> None:
        self._heartbeat.note()
        self.num_heard += len(frames)
        try:
            self.take_in([wire.decode_to_gateway(frame) for frame in frames])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            self._on_useless(f"The engine sent what is no message: {error}.")

    def _on_end(self, error: ConnectionError) -> None:
        if isinstance(error, FrameError):
            self._on_useless(f"The engine sent what is no message: {error}.")
        else:
            self._has_hung_up = True
            self._on_hung_up()

    def _on_message(self, message: wire.ToGateway) -> None:
        match message:
            case wire.Session(state):
                self._answers.dispatch(state)
            case wire.Adopted(request_id, sessions):
                if (on_adopted := self._adoptions.pop(request_id, None)) is not None:
                    on_adopted(sessions)
            case wire.Reset(answer):
                self._resets.dispatch(answer)
            case wire.Stats(stats, incarnation, sessions, tenants, arrivals):
                if incarnation == self.incarnation:
                    self.last_stats = stats
                    self._sessions += sessions
                    self._arrivals += arrivals
                    self.tenants = tenants
                    for note in tenants:
                        if note.num_served:
                            self._served[note.tenant] += note.num_served
                    num_open = sum(stats.num_waiting) + sum(stats.num_running)
                    self._num_others = max(0, num_open - self.router.num_open)
                else:
                    self.num_stale += 1
            case wire.Ready():
                self._on_ready(message)
            case wire.Pong():
                pass
            case wire.Fatal(reason):
                self.die(reason)
                self._on_hung_up()

    def _on_ready(self, ready: wire.Ready) -> None:
        if self._info is None:
            self._info, self.incarnation = ready.info, ready.incarnation
        self.settled.set()
        self._heartbeat.start()

    def _ask(self) -> None:
        self.send(wire.Ping())

    def _on_silence(self) -> None:
        self._end_code = ErrorCode.ENGINE_HUNG
        self._on_useless(f"The engine hung: it said nothing for {self._timeout_seconds:g} seconds.")

"""Peers by number, and blocks on their way from a peer's host into slots of ours."""

from __future__ import annotations

import queue
import time
from collections import OrderedDict
from collections.abc import Callable

from schedcore.api.types import PeerSource
from schedcore.peers.block_transport import BlockTransport, PeerBlocks
from schedcore.peers.peer_thread import PeerTask, PeerThread
from worker.tiers.host_tier import HostTier
from worker.tiers.move_thread import Ends
from worker.tiers.tier_moves import MoveEnd, Moves

MAX_PEERS = 16  # that are spoken with; at most as many as the core has numbers for


class PeerPulls:
    """The engine loop's, but for the tasks."""

    def __init__(self, transport: BlockTransport, host: HostTier, wake: Callable[[], None]) -> None:
        """wake: makes the loop take a turn soon; thread-safe."""
        self.wake = wake
        self.num_slots = host.num_slots
        self._transport, self._host = transport, host
        self._threads: OrderedDict[int, PeerThread] = OrderedDict()  # by number, the last used one last
        self._rates: queue.SimpleQueue[tuple[int, int, float]] = queue.SimpleQueue()

    def number(self, source: PeerSource, forget: Callable[[int], None]) -> int | None:
        """The peer's; None if too many are busy. forget: is called where the number was another's until now."""
        for number, thread in self._threads.items():
            if thread.source == source:
                self._threads.move_to_end(number)
                return number
        number = len(self._threads)
        if number == MAX_PEERS:
            idle = next((number for number, thread in self._threads.items() if not thread.is_busy), None)
            if idle is None:
                return None
            number = idle
            self._threads.pop(number).close()
            forget(number)
        self._threads[number] = PeerThread(source, self._transport)
        return number

    def ask(self, number: int, task: PeerTask) -> bool:
        """False if too many tasks wait for that peer."""
        return self._threads[number].put(task)

    def begin(self, moves: Moves, number: int, ends: Ends) -> None:
        """REQUIRES: the slots are nobody else's until their moves have ended."""
        task = _PullTask(moves, number, self._host, ends, self._rates)
        if not self._threads[number].put(task):
            task.fail(is_refused=False)

    def take_rates(self) -> list[tuple[int, int, float]]:
        """(peer, bytes, seconds) of what has been pulled since the last call."""
        return [self._rates.get() for _ in range(self._rates.qsize())]

    def close(self) -> None:
        for thread in self._threads.values():
            thread.close()


class _PullTask:
    def __init__(
        self,
        moves: Moves,
        number: int,
        host: HostTier,
        ends: Ends,
        rates: queue.SimpleQueue[tuple[int, int, float]],
    ) -> None:
        self._moves, self._number, self._host, self._ends, self._rates = moves, number, host, ends, rates
        self._num_ended = 0

    def run(self, peer: PeerBlocks) -> None:
        places = [self._host.slot_bytes(slot) for slot in self._moves.slots.tolist()]
        start, num_done = time.monotonic(), 0
        for is_done in peer.pull(self._moves.keys, places):
            num_done += is_done
            self._end(is_done=is_done)
        seconds = max(time.monotonic() - start, 1e-6)
        if num_done:
            self._rates.put((self._number, num_done * self._host.block_bytes, seconds))

    def fail(self, *, is_refused: bool) -> None:
        while self._num_ended < len(self._moves):
            self._end(is_done=False)

    def _end(self, *, is_done: bool) -> None:
        self._ends.put(MoveEnd([self._moves.ids[self._num_ended]], is_done))
        self._num_ended += 1

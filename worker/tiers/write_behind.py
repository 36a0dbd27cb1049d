"""Blocks on their way from the device to the host on CPU: a thread copies them while steps run.

A complete block is only read, until the core gives its memory away: then whoever is about to write there calls
make_way() first. That is rare, and does not wait for the thread's turn: what it has not begun is copied on the spot.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from worker.tiers.move_thread import CLOSE_SECONDS, Ends
from worker.tiers.tier_moves import Int64, Moves, Units


class WriteBehind:
    """put(), make_way() and close() are one thread's; the copying happens there or on a thread of its own."""

    def __init__(self, copy: Callable[[Moves], None], num_units: int, ends: Ends) -> None:
        """num_units: of the device. ends: where finished moves go, and what copying raised."""
        self._copy, self._ends = copy, ends
        self._waiting: deque[Moves] = deque()
        self._copied: deque[Int64] = deque()  # units
        self._num_saves = np.zeros(num_units, np.int32)  # of a unit, on their way: a block may be saved again
        self._num_on_their_way = 0  # batches
        self._copying = threading.Lock()  # held from taking a batch until it is copied
        self._more = threading.Semaphore(0)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="tier saves", daemon=True)
        self._thread.start()

    def put(self, moves: Moves) -> None:
        self._num_saves[moves.units] += 1
        self._num_on_their_way += 1
        self._waiting.append(moves)
        self._more.release()

    def make_way(self, units: Units) -> None:
        """Returns when none of these units of the device is on its way any more."""
        if self._num_on_their_way == 0:
            return
        self._note_copied()
        if not self._num_saves[units].any():
            return
        while self._copy_next():
            pass
        self._note_copied()

    def close(self) -> None:
        """Ends what was begun, then the thread."""
        self._is_closing = True
        self._more.release()
        self._thread.join(CLOSE_SECONDS)

    def _note_copied(self) -> None:
        while self._copied:
            self._num_saves[self._copied.popleft()] -= 1
            self._num_on_their_way -= 1

    def _copy_next(self) -> bool:
        """False if nothing waits; then nothing is being copied either."""
        with self._copying:
            if not self._waiting:
                return False
            moves = self._waiting.popleft()
            self._copy(moves)
            self._copied.append(moves.units)
        for end in moves.done():
            self._ends.put(end)
        return True

    def _run(self) -> None:
        with torch.inference_mode():
            try:
                while True:
                    self._more.acquire()
                    if not self._copy_next() and self._is_closing:
                        return
            except BaseException as error:
                self._ends.put(error)

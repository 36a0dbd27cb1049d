"""The engine loop's side of the memory tiers: moves out of plans, their ends into the core."""

from __future__ import annotations

from typing import Any, Protocol

from schedcore._core import BatchPlan, Scheduler
from schedcore.api.types import NUM_TIERS
from worker.tiers.engine_peers import EnginePeers
from worker.tiers.tier_mover import TierMover
from worker.tiers.tier_moves import key_array

WAIT_SECONDS = 0.005  # for a move while there is nothing else to do; messages wait no longer


class Tiers(Protocol):
    """What the engine's loop calls, in this order in each step; wait() where there is no step to execute."""

    def report(self) -> None:
        """Tells the core what has ended since the last call."""

    def begin(self, plan: BatchPlan) -> None:
        """Call before the plan is executed."""

    def wait(self) -> bool:
        """For the next end, a little while. False if nothing is under way."""

    def finish_step(self) -> None:
        """Call when the plan has been executed, before its tokens are used."""

    @property
    def disk_bytes(self) -> int: ...
    @property
    def max_disk_bytes(self) -> int: ...
    def peer_counts(self) -> dict[str, Any]:
        """Fields of EngineStats."""

    def close(self) -> None: ...


class NoTiers:
    """The device's memory is all there is."""

    disk_bytes = max_disk_bytes = 0

    def report(self) -> None:
        pass

    def begin(self, plan: BatchPlan) -> None:
        pass

    def wait(self) -> bool:
        return False

    def finish_step(self) -> None:
        pass

    def peer_counts(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        pass


class EngineTiers:
    def __init__(self, core: Scheduler, mover: TierMover, peers: EnginePeers | None = None) -> None:
        """Tells the core what the disk has from an earlier life. peers: None: nothing comes from other engines."""
        self._core, self._mover, self._peers = core, mover, peers
        if mover.disk is not None:
            core.note_on_disk(key_array(mover.disk.all_keys()))

    def begin(self, plan: BatchPlan) -> None:
        self._mover.begin(plan)

    def finish_step(self) -> None:
        self._mover.finish_step()

    def report(self) -> None:
        if self._peers is not None:
            self._peers.serve()
        ends = self._mover.take_ends()
        if not ends:
            return
        done = [move_id for end in ends if end.is_done for move_id in end.move_ids]
        self._core.complete_moves(done, [move_id for end in ends if not end.is_done for move_id in end.move_ids])
        dropped = [key for end in ends for key in end.dropped or ()]
        if dropped:
            self._core.forget_on_disk(key_array(dropped))

    def wait(self) -> bool:
        if not self._core.has_moves():
            return False
        self._mover.wait(WAIT_SECONDS)
        return True

    @property
    def disk_bytes(self) -> int:
        return 0 if self._mover.disk is None else self._mover.disk.num_bytes

    @property
    def max_disk_bytes(self) -> int:
        return 0 if self._mover.disk is None else self._mover.disk.max_bytes

    def peer_counts(self) -> dict[str, Any]:
        return {} if self._peers is None else self._peers.counts()

    def close(self) -> None:
        if self._peers is not None:
            self._peers.close()
        self._mover.close()


def tier_bytes(tier_tokens: list[int], block_size: int, bytes_per_block: int) -> list[int]:
    """Tokens per tier come in complete blocks."""
    assert len(tier_tokens) == NUM_TIERS
    return [tokens // block_size * bytes_per_block for tokens in tier_tokens]

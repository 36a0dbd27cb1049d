"""What this engine gives its peers: sessions that the core knows, blocks of the host and the disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from schedcore._core import Scheduler
from schedcore.peers.loop_calls import LoopCalls
from schedcore.tiers.block_digest import Key
from schedcore.tiers.disk_tier import DiskTier
from schedcore.tiers.session_files import SessionName
from worker.tiers.host_tier import HostTier
from worker.tiers.tier_moves import key_array

LOOP_SECONDS = 2.0  # that the engine's loop may take for its part: it makes a step between two turns


class TierBlockStore:
    """A BlockStore, for any thread."""

    def __init__(self, core: Scheduler, host: HostTier, disk: DiskTier | None, calls: LoopCalls) -> None:
        self._core, self._host, self._disk, self._calls = core, host, disk, calls

    def session_tokens(self, name: SessionName) -> bytes | None:
        ask = partial(self._core.session_tokens, name.session_id, tenant=name.tenant, cache_salt=name.salt)
        token_ids = self._calls.call(ask, LOOP_SECONDS)
        return token_ids.astype("<i4").tobytes() if len(token_ids) else None

    def recent_sessions(self, max_num_sessions: int) -> list[SessionName]:
        limit = min(max(0, max_num_sessions), np.iinfo(np.int32).max)
        return [
            SessionName(*name) for name in self._calls.call(lambda: self._core.recent_sessions(limit), LOOP_SECONDS)
        ]

    def held(self, keys: Sequence[Key]) -> bytes:
        asked = key_array(keys)
        return self._calls.call(lambda: self._core.has_in_tiers(asked), LOOP_SECONDS).astype(np.uint8).tobytes()

    def copies(self, keys: Sequence[Key]) -> list[bytearray | None]:
        slots = self._calls.call(partial(self._core.lend, key_array(keys)), LOOP_SECONDS).tolist()
        try:
            found = [None if slot < 0 else bytearray(self._host.slot_bytes(slot)) for slot in slots]
        finally:
            lent = [key for key, slot in zip(keys, slots, strict=True) if slot >= 0]
            self._calls.post(partial(self._core.take_back, key_array(lent)))
        return [self._from_disk(key) if block is None else block for key, block in zip(keys, found, strict=True)]

    def _from_disk(self, key: Key) -> bytearray | None:
        if self._disk is None:
            return None
        block = bytearray(self._host.block_bytes)
        return block if self._disk.read(key, memoryview(block)) else None

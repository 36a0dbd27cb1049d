"""What the host and the disk have of vLLM's blocks, what is saved of them, and what comes back for whom.

    device --save--> host --store--> disk        every block that is complete, behind the steps
    device <--load-- host <--fetch-- disk        for a request that waits

A block is saved by the step after the one that completed it, before anything is written there; that of a request that
ends or is put out, by the next step. So eviction loses nothing, and nobody waits for it. Loads are part of the step
that reads the blocks. What is on the disk comes to the host first, while the request waits; then it is asked for again.

Blocks are named as in our own worker: by a digest of all that they depend on. A request with more than tokens in its
prompt (images) is left alone. The index and its eviction are the core's.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from schedcore._core import KeyChain, TierIndex
from schedcore.tiers.cache_fingerprint import cache_fingerprint
from vllm_engine.kv.restore_costs import RestoreCosts
from vllm_engine.kv.step_moves import Key, StepMoves, TierReport

UNCOUNTED = "advisory-"  # how the names of requests begin that nobody waits for: what they find is no hit
MAX_STORES = 64  # under way; more may be lost in a crash

Blocks = Callable[[str], Sequence[int]]  # a request's, on the device


class Request(Protocol):
    """What is read of vLLM's."""

    request_id: str
    num_computed_tokens: int
    num_tokens: int
    all_token_ids: Sequence[int]
    cache_salt: str | None
    skip_reading_prefix_cache: bool
    num_preemptions: int


class PlannedStep(Protocol):
    """Of vLLM's SchedulerOutput."""

    num_scheduled_tokens: Mapping[str, int]


@dataclass(slots=True)
class TierCounters:
    num_saved_blocks: int = 0
    num_loaded_blocks: int = 0
    num_stored_blocks: int = 0
    num_fetched_blocks: int = 0
    num_lost_blocks: int = 0  # that the disk should have had
    num_restores: int = 0  # of requests
    num_host_tokens: int = 0  # that requests found on the host, and those of them that had been on the disk
    num_disk_tokens: int = 0


@dataclass(slots=True)
class _Open:
    request: Any
    chain: KeyChain
    keys: list[Key] = field(default_factory=list)  # of its first blocks
    num_offered: int = 0  # blocks that the host has, or was offered
    num_found: int = 0  # tokens that the device had when it was last asked for
    fetching: set[int] = field(default_factory=set)  # moves
    num_fetched: int = 0  # blocks that came from the disk for it
    is_new: bool = False  # the step that is being planned is its first: what it found cached may be computed in it
    has_fetched: bool = False  # once; then it takes what is there


@dataclass(slots=True)
class _Move:
    key: Key
    is_store: bool
    num_ended: int = 0  # workers
    has_failed: bool = False
    owner: str | None = None  # of a fetch


class TierPlanner:
    """One thread's. Nothing here touches memory."""

    def __init__(
        self,
        fingerprint: str,
        block_size: int,
        num_slots: int,
        max_disk_bytes: int,
        costs: RestoreCosts,
        num_workers: int = 1,
    ) -> None:
        """max_disk_bytes: 0 for no disk tier."""
        self.fingerprint, self._block_size = fingerprint, block_size
        self.max_disk_bytes = max_disk_bytes
        self._index = TierIndex(num_slots)
        self.costs, self._num_workers = costs, num_workers
        self._open: dict[str, _Open] = {}
        self._moves = StepMoves()
        self._loading: list[Key] = []  # whose slots the step that is being planned reads
        self._held: list[Key] = []  # and those of the step before
        self._under_way: dict[int, _Move] = {}
        self._last_id = 0
        self._num_stores = 0
        self.is_paused = False  # nothing is saved, and nothing found
        self.counters = TierCounters()
        self.disk_bytes = 0

    # ---- requests ----

    def add(self, request: Request) -> None:
        if getattr(request, "mm_features", None) or getattr(request, "prompt_embeds", None) is not None:
            return
        chain = KeyChain(self.fingerprint, salt_of(request.cache_salt, lora_of(request)), self._block_size)
        self._open[request.request_id] = _Open(request, chain)

    def num_loadable(self, request: Request, num_computed: int) -> int | None:
        """Tokens behind those that are loaded if the request comes in now. None: ask again, something is under way."""
        each = self._open.get(request.request_id)
        if each is None or self.is_paused or request.skip_reading_prefix_cache:
            return 0
        if each.fetching:
            return None
        begin, limit = num_computed // self._block_size, (request.num_tokens - 1) // self._block_size
        self._extend_keys(each, limit)
        on_host, there = self._extent(each.keys, begin, limit)
        each.num_found = num_computed
        if there > on_host and not each.has_fetched:
            for key in each.keys[begin:on_host]:  # that they are not dropped for what comes
                self._index.touch(key)
            if self._is_faster(each, begin, there, there - on_host) and self._begin_fetch(each, on_host, there):
                return None
        if on_host == begin or not self._is_faster(each, begin, on_host, 0):
            return 0
        return (on_host - begin) * self._block_size

    def num_known(self, request: Request, num_computed: int) -> int:
        """Tokens behind those that are in slower tiers, without beginning anything."""
        each = self._open.get(request.request_id)
        if each is None or self.is_paused or request.skip_reading_prefix_cache:
            return 0
        begin, limit = num_computed // self._block_size, (request.num_tokens - 1) // self._block_size
        self._extend_keys(each, limit)
        return (self._extent(each.keys, begin, limit)[1] - begin) * self._block_size

    def begin_load(self, request: Request, block_ids: Sequence[int], num_tokens: int) -> None:
        """The request comes in, and so many tokens are loaded: as many as num_loadable() said, or none."""
        each = self._open.get(request.request_id)
        if each is None:
            return
        each.is_new = True
        if num_tokens == 0:
            return
        begin = each.num_found // self._block_size
        end = begin + num_tokens // self._block_size
        for key, block in zip(each.keys[begin:end], block_ids[begin:end], strict=True):
            slot = self._index.host_slot(key)
            if slot is None:
                raise RuntimeError("a block that is to be loaded is not on the host any more")
            self._index.begin_read(key)
            self._loading.append(key)
            self._moves.loads.append((slot, block))
        self.counters.num_loaded_blocks += end - begin
        if request.request_id.startswith(UNCOUNTED) or request.num_preemptions > 0:
            return
        self.counters.num_restores += 1
        num_fetched = min(each.num_fetched, end - begin)
        self.counters.num_disk_tokens += num_fetched * self._block_size
        self.counters.num_host_tokens += (end - begin - num_fetched) * self._block_size

    def offer(self, request: Request, block_ids: Blocks) -> None:
        """Its blocks that are complete by now, before they can be another's."""
        each = self._open.get(request.request_id)
        if each is not None:
            self._offer(each, block_ids)

    def release(self, request: Request, block_ids: Blocks) -> None:
        """It is put out, or ends: the same; then it begins again."""
        self.offer(request, block_ids)
        each = self._open.get(request.request_id)
        if each is not None:
            each.num_offered, each.has_fetched, each.num_fetched = 0, False, 0

    def end(self, request_id: str) -> None:
        """Idempotent. What is under way for it goes on."""
        self._open.pop(request_id, None)

    # ---- steps ----

    def plan(self, step: PlannedStep, block_ids: Blocks) -> StepMoves:
        """Moves that go with the step, which was just planned: its tokens do not count as computed yet."""
        for key in self._held:
            self._index.end_read(key)
        self._held, self._loading = self._loading, []
        for request_id in step.num_scheduled_tokens:
            each = self._open.get(request_id)
            if each is None:
                continue
            if each.is_new:
                each.is_new = False
            elif each.request.num_computed_tokens >= (each.num_offered + 1) * self._block_size:
                self._offer(each, block_ids)
        self._begin_stores()
        moves, self._moves = self._moves, StepMoves()
        return moves

    def take(self, report: TierReport) -> None:
        """What the workers say."""
        if report.opened is not None:
            self.costs.host_bytes_per_second = report.opened.host_bytes_per_second
            for key in report.opened.on_disk:
                self._index.set_on_disk(key)
        self.disk_bytes = report.disk_bytes
        for key in report.dropped:
            self._index.clear_on_disk(key)
        for move_id, num in report.num_ended.items():
            move = self._under_way[move_id]
            move.num_ended += num
            move.has_failed |= move_id in report.failed
            if move.num_ended == self._num_workers:
                del self._under_way[move_id]
                (self._end_store if move.is_store else self._end_fetch)(move_id, move)

    def has_work(self) -> bool:
        """There is something to do, even if nobody is served."""
        return bool(self._moves or self._under_way or self._index.has_unwritten())

    def num_tokens_in(self, keys: Sequence[Key], begin: int) -> tuple[list[int], int]:
        """Of these blocks from `begin` on: tokens on the host, on the disk only; and of those before the first gap."""
        on_host = [self._index.host_slot(key) is not None for key in keys[begin:]]
        on_disk = [self._index.is_on_disk(key) for key in keys[begin:]]
        num_disk_only = sum(disk and not host for host, disk in zip(on_host, on_disk, strict=True))
        num_coming = self._extent(keys, begin, len(keys))[1] - begin
        return [sum(on_host) * self._block_size, num_disk_only * self._block_size], num_coming * self._block_size

    def keys_of(self, token_ids: Sequence[int], cache_salt: str | None, lora_name: str = "") -> list[Key]:
        """Of the complete blocks of a text that no request has."""
        num_complete = len(token_ids) // self._block_size * self._block_size
        chain = KeyChain(self.fingerprint, salt_of(cache_salt, lora_name), self._block_size)
        return chain.append(token_ids[:num_complete])

    @property
    def num_slots(self) -> int:
        return self._index.num_slots

    @property
    def num_free_slots(self) -> int:
        return self._index.num_free_slots

    def check_invariants(self) -> None:
        """Raises CoreError or RuntimeError on the first broken one."""
        self._index.check_invariants()
        stores = sum(move.is_store for move in self._under_way.values())
        if stores != self._num_stores:
            raise RuntimeError(f"{stores} stores are under way, {self._num_stores} are counted")

    # ---- within ----

    def _extend_keys(self, each: _Open, num_blocks: int) -> None:
        if len(each.keys) < num_blocks:
            begin, end = len(each.keys) * self._block_size, num_blocks * self._block_size
            each.keys += each.chain.append(each.request.all_token_ids[begin:end])

    def _extent(self, keys: Sequence[Key], begin: int, limit: int) -> tuple[int, int]:
        """Where the blocks from `begin` on end that are on the host, and where those that are there at all."""
        on_host = begin
        while on_host < limit and self._index.host_slot(keys[on_host]) is not None:
            on_host += 1
        there = on_host
        while there < limit and (self._index.host_slot(keys[there]) is not None or self._index.is_on_disk(keys[there])):
            there += 1
        return on_host, there

    def _is_faster(self, each: _Open, begin: int, end: int, num_from_disk: int) -> bool:
        size = self._block_size
        return self.costs.is_faster(each.request.num_tokens, begin * size, end * size, num_from_disk, size)

    def _offer(self, each: _Open, block_ids: Blocks) -> None:
        if self.is_paused:
            return
        request = each.request
        end = min(request.num_computed_tokens, request.num_tokens) // self._block_size
        if end <= each.num_offered:
            return
        self._extend_keys(each, end)
        blocks = block_ids(request.request_id)
        for i in range(each.num_offered, min(end, len(blocks))):
            self._save(each.keys[i], blocks[i])
        each.num_offered = end

    def _save(self, key: Key, block: int) -> None:
        if self._index.host_slot(key) is not None:
            self._index.touch(key)
        elif not self._index.is_arriving(key) and (slot := self._index.take_slot(key)) is not None:
            self._index.arrive(key)  # before anything of the next step reads or writes
            self._moves.saves.append((block, slot))
            self.counters.num_saved_blocks += 1
            if self.max_disk_bytes > 0:
                self._index.queue_write(key)

    def _begin_stores(self) -> None:
        while self._num_stores < MAX_STORES and (key := self._index.take_unwritten()) is not None:
            slot = self._index.host_slot(key)
            assert slot is not None
            self._index.begin_read(key)
            self._moves.stores.append((self._begin_move(_Move(key, is_store=True)), slot, key))
            self._num_stores += 1

    def _begin_fetch(self, each: _Open, begin: int, end: int) -> bool:
        """False if nothing of it fits the host."""
        each.has_fetched = True
        for key in each.keys[begin:end]:
            if self._index.host_slot(key) is not None or self._index.is_arriving(key):
                continue
            slot = self._index.take_slot(key)
            if slot is None:
                break
            move_id = self._begin_move(_Move(key, is_store=False, owner=each.request.request_id))
            each.fetching.add(move_id)
            self._moves.fetches.append((move_id, slot, key))
        return bool(each.fetching)

    def _begin_move(self, move: _Move) -> int:
        self._last_id += 1
        self._under_way[self._last_id] = move
        return self._last_id

    def _end_store(self, move_id: int, move: _Move) -> None:
        self._num_stores -= 1
        self._index.end_read(move.key)
        if not move.has_failed:
            self._index.set_on_disk(move.key)
            self.counters.num_stored_blocks += 1

    def _end_fetch(self, move_id: int, move: _Move) -> None:
        each = self._open.get(move.owner or "")
        if each is not None:
            each.fetching.discard(move_id)
            each.num_fetched += not move.has_failed
        if move.has_failed:
            self._index.fail_arrival(move.key)
            self._index.clear_on_disk(move.key)
            self.counters.num_lost_blocks += 1
        else:
            self._index.arrive(move.key)
            self.counters.num_fetched_blocks += 1


def salt_of(cache_salt: str | None, lora_name: str = "") -> str:
    """Of the keys: blocks of another salt, or of another adapter, are others."""
    return json.dumps([cache_salt or "", lora_name])


def lora_of(request: object) -> str:
    """The adapter's name, and what it is."""
    lora = getattr(request, "lora_request", None)
    return "" if lora is None else f"{lora.lora_name} {_adapter_fingerprint(lora.lora_path)}"


@functools.cache  # as it was when it was first used: vLLM does not load it again
def _adapter_fingerprint(folder: str) -> str:
    return cache_fingerprint(Path(folder) if Path(folder).is_dir() else None, {"adapter": folder})

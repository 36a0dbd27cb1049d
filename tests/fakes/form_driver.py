"""A scheduler of the tests' own that decides cache forms at random, for a real model runner.

It keeps requests as K and V or as hidden states, with any number of first blocks uncached, changes both in the middle
of a request, shares prefixes, preempts, and cuts prompts and decodes into steps as it likes. What its plans mean is
written in cpp/core/base/batch_plan.h; the core could have made every one of them. Memory that is free holds NaN.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from schedcore._core import CacheKind
from schedcore.api.types import EngineRequest
from worker.batch.paged_pool import NUM_VECTOR_KINDS, PagedPool
from worker.runner.model_runner import ModelRunner
from worker.tiers.host_tier import HostTier

KV, HIDDEN = CacheKind.KV, CacheKind.HIDDEN


@dataclass(frozen=True)
class Choices:
    """What may be decided."""

    kinds: tuple[int, ...] = (KV, HIDDEN)  # at admission
    can_leave_uncached: bool = True
    can_reshape: bool = True
    can_preempt: bool = True
    can_share: bool = True
    can_load: bool = True  # if there is a host


@dataclass
class Running:
    request: EngineRequest
    row: int = -1
    output: list[int] = field(default_factory=list)
    kind: int = KV
    num_uncached: int = 0  # blocks
    num_shared: int = 0  # blocks
    num_computed: int = 0  # tokens
    num_recomputed: int = 0  # tokens, to be recomputed with the next step
    blocks: list[list[int] | None] = field(default_factory=list)  # units, in the order of the block table

    @property
    def known(self) -> list[int]:
        return self.request.prompt_token_ids + self.output


@dataclass
class Met:
    """What the plans held, in tokens and blocks."""

    hidden: int = 0
    uncached: int = 0
    projected: int = 0
    shared: int = 0
    preempted: int = 0
    loaded: int = 0


class FormDriver:
    def __init__(
        self,
        runner: ModelRunner,
        pool: PagedPool,
        choices: Choices,
        seed: int,
        max_num_tokens: int,
        *,
        host: HostTier | None = None,
        num_layers: int = 0,
    ) -> None:
        """host: has room for every block, and the pool an engine that loads from it. num_layers: of the model."""
        self._host, self._num_layers = host, num_layers
        self._slot: dict[tuple[int, int], int] = {}  # on the host, by request and block
        self._runner, self._pool, self._choices = runner, pool, choices
        self._random, self._max_num_tokens = random.Random(seed), max_num_tokens
        self._num_groups = pool.block_table.shape[1]
        self._num_spare_units = pool.num_workspace_units + pool.num_lane_units
        self._free_units = list(range(pool.data.shape[0] - self._num_spare_units))
        self._free_rows = list(range(pool.block_table.shape[0]))
        self._random.shuffle(self._free_units)
        self._waiting: list[Running] = []
        self._running: list[Running] = []
        self._cached: dict[tuple[int, ...], list[int]] = {}  # by all tokens up to the block's end
        self._changes: dict[int, int] = {}
        self._projections: list[tuple[int, int, list[int]]] = []
        self.outputs: dict[int, list[int]] = {}
        self.met = Met()
        pool.block_table.fill_(2**30)
        self._spoil_free_memory()

    def run(self, requests: list[EngineRequest]) -> list[list[int]]:
        """The outputs, in order."""
        for request in requests:
            self._runner.add_request(request)
            self._waiting.append(Running(request))
        while self._waiting or self._running:
            self._step()
        return [self.outputs[request.request_id] for request in requests]

    # ---- one step ----

    def _step(self) -> None:
        self._changes, self._projections = {}, []
        chance = self._random.random
        for one in list(self._running):
            if self._choices.can_preempt and chance() < 0.02:
                self._preempt(one)
        while self._waiting and self._free_rows and (not self._running or chance() < 0.5):
            if not self._admit(self._waiting[0]):
                break
        for one in self._running:
            if self._choices.can_reshape and chance() < 0.3:
                self._reshape(one)
        granted = self._grant(0.1) or self._grant(0.0)
        while not granted:
            self._preempt(self._random.choice(self._running))
            if not self._running:
                return
            granted = self._grant(0.0)
        plan = self._plan(granted)
        sampled = self._runner.execute(plan).sampled_token_ids.tolist()  # type: ignore[arg-type]
        self._commit(granted, dict(zip(plan.sample_seqs.tolist(), sampled, strict=True)))
        self._spoil_free_memory()

    def _admit(self, one: Running) -> bool:
        one.kind = self._random.choice(self._choices.kinds)
        one.blocks, one.num_shared, one.num_uncached = [], 0, 0
        size, known = self._pool.block_size, one.known
        if self._choices.can_leave_uncached and self._random.random() < 0.5:
            one.num_uncached = self._random.randint(0, len(known) // size)
        elif self._choices.can_share:
            while (one.num_shared + 1) * size < len(known):
                units = self._cached.get(tuple(known[: (one.num_shared + 1) * size]))
                if units is None:
                    break
                one.blocks.append(units)
                one.num_shared += 1
        one.blocks += [None] * one.num_uncached
        num_new = -(-len(known) // size) - len(one.blocks)
        if num_new * self._num_units(one.kind) > len(self._free_units):
            return False
        self._waiting.remove(one)
        self._running.append(one)
        one.row = self._free_rows.pop(self._random.randrange(len(self._free_rows)))
        one.num_computed = one.num_shared * size
        self.met.shared += one.num_computed
        for index, units in enumerate(one.blocks):
            self._tell(one, index, units)
        return True

    def _reshape(self, one: Running) -> None:
        """As DeviceMemory::reshape() of the core."""
        kind = self._random.choice((one.kind, KV))
        num_uncached = 0
        if self._choices.can_leave_uncached and one.num_shared == 0:
            num_uncached = self._random.randint(0, len(one.blocks))
        first = max(one.num_shared, num_uncached)
        num_held = sum(len(units) for units in one.blocks[one.num_shared :] if units is not None)
        if (len(one.blocks) - first) * self._num_units(kind) > len(self._free_units) + num_held:
            return
        for index in range(one.num_shared, len(one.blocks)):
            units = one.blocks[index]
            if units is None or (index >= first and kind == one.kind):
                continue
            if index >= first:
                self._projections.append((one.row, index, units))
                self.met.projected += 1
            self._release(units)
            one.blocks[index] = None
        for index in range(first, len(one.blocks)):
            if one.blocks[index] is None:
                one.blocks[index] = self._allocate(kind)
                self._tell(one, index, one.blocks[index])
        one.kind, one.num_uncached = kind, num_uncached
        one.num_recomputed = max(one.num_recomputed, min(num_uncached * self._pool.block_size, one.num_computed))

    def _grant(self, pause: float) -> list[tuple[Running, int]]:
        """Requests and how many tokens each computes; those that have their blocks."""
        granted, budget = [], self._max_num_tokens
        for one in self._random.sample(self._running, len(self._running)):
            num_left = len(one.known) - one.num_computed
            most = min(num_left, budget - one.num_recomputed)
            if most <= 0 or self._random.random() < pause:
                continue
            num_tokens = most if self._random.random() < 0.7 else self._random.randint(1, most)
            if self._grow(one, one.num_computed + num_tokens):
                granted.append((one, num_tokens))
                budget -= num_tokens + one.num_recomputed
        return sorted(granted, key=lambda grant: len(grant[0].known) - grant[0].num_computed > 1)

    def _grow(self, one: Running, num_tokens: int) -> bool:
        num_new = -(-num_tokens // self._pool.block_size) - len(one.blocks)
        if num_new * self._num_units(one.kind) > len(self._free_units):
            return False
        for _ in range(num_new):
            one.blocks.append(self._allocate(one.kind))
            self._tell(one, len(one.blocks) - 1, one.blocks[-1])
        return True

    def _commit(self, granted: list[tuple[Running, int]], sampled: dict[int, int]) -> None:
        for seq, (one, num_tokens) in enumerate(granted):
            one.num_computed += num_tokens
            one.num_recomputed = min(one.num_uncached * self._pool.block_size, one.num_computed)
            self._copy(one)
            if seq in sampled:
                one.output.append(sampled[seq])
            if len(one.output) == one.request.max_tokens:
                self.outputs[one.request.request_id] = one.output
                self._runner.remove_request(one.request.request_id)
                self._leave(one)
            elif self._choices.can_share and one.kind == KV and one.num_uncached == 0 and one.num_recomputed == 0:
                self._offer(one)

    def _copy(self, one: Running) -> None:
        """Complete blocks of K and V to the host."""
        if self._host is None or one.kind != KV:
            return
        for index in range(one.num_uncached, one.num_computed // self._pool.block_size):
            units, name = one.blocks[index], (one.request.request_id, index)
            if units is not None and name not in self._slot:
                self._slot[name] = len(self._slot)
                self._host.data[self._slot[name]] = self._pool.data[units].to(self._host.data.device)

    def _loads(self, requests: list[Running]) -> tuple[list[int], list[int]]:
        """Through how many layers each one's uncached tokens are recomputed, and the slots of what is loaded."""
        recomputed, slots = [], []
        for one in requests:
            names = [(one.request.request_id, index) for index in range(one.num_uncached)]
            is_whole = 0 < one.num_recomputed == one.num_uncached * self._pool.block_size
            has_room = len(slots) + len(names) <= self._pool.num_lane_blocks
            is_there = is_whole and has_room and all(name in self._slot for name in names)
            is_loaded = self._host is not None and self._choices.can_load and is_there and self._random.random() < 0.8
            recomputed.append(self._random.randrange(self._num_layers) if is_loaded else self._num_layers)
            slots += [self._slot[name] for name in names] if is_loaded else []
            self.met.loaded += one.num_recomputed if is_loaded else 0
        return (recomputed, slots) if slots else ([], [])

    def _offer(self, one: Running) -> None:
        """Complete blocks join what is shared, for ever."""
        size = self._pool.block_size
        while (one.num_shared + 1) * size <= one.num_computed and len(self._cached) < 8:
            units, prefix = one.blocks[one.num_shared], tuple(one.known[: (one.num_shared + 1) * size])
            if units is None or prefix in self._cached:
                return
            self._cached[prefix] = units
            one.num_shared += 1

    # ---- memory ----

    def _num_units(self, kind: int) -> int:
        return self._num_groups * (1 if kind == HIDDEN else NUM_VECTOR_KINDS)

    def _allocate(self, kind: int) -> list[int]:
        return [self._free_units.pop() for _ in range(self._num_units(kind))]

    def _release(self, units: list[int]) -> None:
        """To either end: some are handed out again at once."""
        place = self._random.choice((0, len(self._free_units)))
        self._free_units[place:place] = units

    def _preempt(self, one: Running) -> None:
        self._projections = [entry for entry in self._projections if entry[0] != one.row]
        self._leave(one)
        one.num_computed = one.num_uncached = one.num_recomputed = 0
        self._waiting.append(one)
        self.met.preempted += 1

    def _leave(self, one: Running) -> None:
        for units in one.blocks[one.num_shared :]:
            if units is not None:
                self._release(units)
        self._running.remove(one)
        self._free_rows.append(one.row)

    def _spoil_free_memory(self) -> None:
        self._pool.data[self._free_units] = float("nan")
        if self._num_spare_units:
            self._pool.data[-self._num_spare_units :] = float("nan")

    def _tell(self, one: Running, index: int, units: list[int] | None) -> None:
        num_rows, num_groups, num_kinds, max_blocks = self._pool.block_table.shape
        assert one.row < num_rows
        for part, unit in enumerate(units or ()):
            self._changes[(one.row * num_groups * num_kinds + part) * max_blocks + index] = unit

    # ---- the plan ----

    def _plan(self, granted: list[tuple[Running, int]]) -> SimpleNamespace:
        ids, positions, token_row, uncached_ids, samples, hidden = [], [], [], [], [], []
        query_start = [0]
        for seq, (one, num_tokens) in enumerate(granted):
            begin, end = one.num_computed, one.num_computed + num_tokens
            ids += one.known[begin:end]
            positions += range(begin, end)
            token_row += [one.row] * num_tokens
            uncached_ids += one.known[: one.num_recomputed]
            query_start.append(len(ids))
            num_own = begin - one.num_shared * self._pool.block_size
            hidden.append(num_own if one.kind == HIDDEN else 0)
            if end == len(one.known):
                samples.append(seq)
        requests = [one for one, _ in granted]
        recomputed_layers, copy_slots = self._loads(requests)
        uncached = [one.num_recomputed for one in requests]
        self.met.hidden += sum(hidden)
        self.met.uncached += sum(uncached)
        return SimpleNamespace(
            num_tokens=len(ids),
            num_seqs=len(requests),
            token_ids=_int32(ids),
            positions=_int32(positions),
            token_row=_int32(token_row),
            request_ids=np.array([one.request.request_id for one in requests], np.uint64),
            rows=_int32([one.row for one in requests]),
            query_start=_int32(query_start),
            seq_lens=_int32([one.num_computed + num_tokens for one, num_tokens in granted]),
            sample_seqs=_int32(samples),
            block_table_index=np.array(list(self._changes), np.int64),
            block_table_unit=_int32(list(self._changes.values())),
            cache_kinds=_int32([one.kind for one in requests]),
            uncached_tokens=_int32(uncached),
            hidden_tokens=_int32(hidden),
            missing_tokens=_int32([one.num_uncached * self._pool.block_size for one in requests]),
            uncached_token_ids=_int32(uncached_ids),
            recomputed_layers=_int32(recomputed_layers),
            copy_slots=_int32(copy_slots),
            projections=_int32([(row, index) for row, index, _ in self._projections]).reshape(-1, 2),
            projected_units=_int32([unit for _, _, units in self._projections for unit in units]),
        )


def _int32(values: list[int] | list[tuple[int, int]]) -> np.ndarray[tuple[int, ...], np.dtype[np.int32]]:
    return np.array(values, np.int32)

"""Uncached tokens whose blocks the host has: what the core saves, when it loads, and through how many layers."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from schedcore._core import (
    AddStatus,
    AdvisoryEvent,
    BatchPlan,
    Estimates,
    Scheduler,
    SchedulerConfig,
    SessionAction,
    algorithms,
)

BLOCK, NUM_LAYERS, UNITS_PER_BLOCK = 16, 8, 4
UNIT_BYTES = 1000.0
MAX_LEN = 256
MAX_BLOCKS = MAX_LEN // BLOCK
SAVE, STEP_LOAD = 0, 4
Content = tuple[int, int]  # request and block
# Weights are read for 8 ms whatever is computed
COSTS = {"step_base": 0.008, "prefill_token": 1e-7, "decode_seq": 2e-5, "overlap": 0.0}


class Core:
    """Moves end with the next step. Notes which request's block every unit and every slot of the host holds."""

    def __init__(self, bytes_per_second: float, num_copy_blocks: int = 40, **settings: Any) -> None:
        model = algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(**{**COSTS, **settings}))
        self.model, self.seconds_per_block = model, UNITS_PER_BLOCK * UNIT_BYTES / bytes_per_second
        config = SchedulerConfig(
            num_units=120, num_layers=NUM_LAYERS, max_num_seqs=16, max_model_len=MAX_LEN, policy="hocket",
            enable_prefix_caching=False, enable_partial_caching=True, num_host_blocks=60,
            num_copy_blocks=num_copy_blocks,
        )  # fmt: skip
        estimates = Estimates(latency=model, host_bytes_per_second=bytes_per_second, unit_bytes=UNIT_BYTES)
        self.scheduler, self.now = Scheduler(config, estimates), 0.0
        self.units: dict[int, Content] = {}
        self.slots: dict[int, Content] = {}
        self.table: dict[int, int] = {}
        self.num_returned = 0  # blocks
        self.splits: list[tuple[list[int], list[int]]] = []  # layers, and tokens, of what was loaded in a step

    def add(self, num: int, *, num_prompt: int, max_tokens: int) -> None:
        for i in range(num):
            prompt = list(range(1000 * i, 1000 * i + num_prompt))
            status = self.scheduler.add_request(
                i,
                prompt,
                max_tokens=max_tokens,
                arrival_time=self.now,
                itl_target=1000.0,  # or readers go on
            )
            assert status == AddStatus.OK

    def run(self) -> dict[str, Any]:
        while self.scheduler.has_work():
            plan = self.scheduler.schedule(self.now)
            self._save(plan)
            self.table.update(zip(plan.block_table_index.tolist(), plan.block_table_unit.tolist(), strict=True))
            self._check_loads(plan)
            self._write(plan)
            moves = plan.move_ids.tolist()
            self.now += 0.01
            if plan:
                self.scheduler.commit(np.full(len(plan.sample_seqs), 7, np.int32), self.now)
            self.scheduler.complete_moves(moves)
            self.scheduler.check_invariants()
        return self.scheduler.stats()

    def _unit(self, row: int, part: int, block: int) -> int:
        return self.table[(row * UNITS_PER_BLOCK + part) * MAX_BLOCKS + block]

    def _save(self, plan: BatchPlan) -> None:
        units = plan.move_units.reshape(-1, UNITS_PER_BLOCK)
        for kind, slot, own in zip(plan.move_kinds.tolist(), plan.move_slots.tolist(), units.tolist(), strict=True):
            assert kind in (SAVE, STEP_LOAD)
            if kind == SAVE:
                (self.slots[slot],) = {self.units[unit] for unit in own}  # all of them hold the same block
        for kind, slot, own in zip(plan.move_kinds.tolist(), plan.move_slots.tolist(), units.tolist(), strict=True):
            if kind == STEP_LOAD:
                self.units.update(dict.fromkeys(own, self.slots[slot]))
                self.num_returned += 1

    def _write(self, plan: BatchPlan) -> None:
        for seq, (request, row) in enumerate(zip(plan.request_ids.tolist(), plan.rows.tolist(), strict=True)):
            has_forms = len(plan.missing_tokens) > 0
            missing = int(plan.missing_tokens[seq]) // BLOCK if has_forms else 0
            num_uncached = int(plan.uncached_tokens[seq]) if has_forms else 0
            begin = int(plan.seq_lens[seq] - np.diff(plan.query_start)[seq])
            first = missing if num_uncached > missing * BLOCK else begin // BLOCK
            self._check_context(request, row, missing, first)
            for block in range(max(first, missing), (int(plan.seq_lens[seq]) - 1) // BLOCK + 1):
                for part in range(UNITS_PER_BLOCK):
                    self.units[self._unit(row, part, block)] = (request, block)

    def _check_context(self, request: int, row: int, begin: int, end: int) -> None:
        for block in range(begin, end):
            for part in range(UNITS_PER_BLOCK):
                assert self.units[self._unit(row, part, block)] == (request, block)

    def _check_loads(self, plan: BatchPlan) -> None:
        if len(plan.copy_slots) == 0:
            assert len(plan.recomputed_layers) == 0
            return
        assert len(plan.recomputed_layers) == plan.num_seqs
        loaded = np.flatnonzero(plan.recomputed_layers < NUM_LAYERS).tolist()
        expected = [
            (int(plan.request_ids[seq]), block)
            for seq in loaded
            for block in range(int(plan.uncached_tokens[seq]) // BLOCK)
        ]
        assert [self.slots[slot] for slot in plan.copy_slots.tolist()] == expected
        assert all(plan.uncached_tokens[seq] == plan.missing_tokens[seq] for seq in loaded)
        assert plan.recomputed_layers[loaded].tolist() == [self._best_split(plan, loaded)] * len(loaded)
        self.splits.append((plan.recomputed_layers[loaded].tolist(), plan.uncached_tokens[loaded].tolist()))

    def _best_split(self, plan: BatchPlan, loaded: list[int]) -> int:
        """By the overlap planner itself, which has a test of its own."""
        batches = [algorithms.LatencyBatch(MAX_LEN) for _ in range(2)]
        for seq, num_tokens in enumerate(np.diff(plan.query_start).tolist()):
            for is_whole, batch in enumerate(batches):
                if num_tokens == 1:
                    batch.add_decode(int(plan.seq_lens[seq]))
                else:
                    batch.add_chunk(int(plan.seq_lens[seq]) - num_tokens, num_tokens)
                if plan.uncached_tokens[seq] > 0 and (is_whole or seq not in loaded):
                    batch.add_chunk(0, int(plan.uncached_tokens[seq]))
        without, whole = (self.model.predict(batch.features) / NUM_LAYERS for batch in batches)
        load = len(plan.copy_slots) * self.seconds_per_block / NUM_LAYERS
        best = algorithms.plan_overlap(
            NUM_LAYERS, compute_seconds=without, recompute_seconds=whole - without, load_kv_seconds=load
        )
        assert best.recomputed_layers < NUM_LAYERS
        return best.recomputed_layers


def crowded(bytes_per_second: float, **settings: Any) -> tuple[Core, dict[str, Any]]:
    """Eight requests where the pool holds little more than three."""
    core = Core(bytes_per_second, **settings)
    core.add(8, num_prompt=100, max_tokens=60)
    return core, core.run()


def test_copies_that_come_at_once_are_loaded_for_all_layers() -> None:
    core, stats = crowded(1e12)
    assert stats["num_conversions"][1] > 0  # running requests gave blocks up
    assert stats["num_loaded_tokens"] > 0
    assert all(set(layers) == {0} for layers, _ in core.splits)
    assert stats["num_loaded_tokens"] == sum(sum(tokens) for _, tokens in core.splits)
    assert core.num_returned > 0  # and got them back


def test_a_plan_that_is_written_again_for_a_draft_has_its_copies_once() -> None:
    model = algorithms.LatencyModel("corrected", algorithms.LatencyCoefficients(**COSTS))
    config = SchedulerConfig(
        num_units=120, num_layers=NUM_LAYERS, max_num_seqs=16, max_model_len=MAX_LEN, policy="hocket",
        enable_partial_caching=True, num_host_blocks=200, num_copy_blocks=40, max_num_sessions=16,
    )  # fmt: skip
    core = Scheduler(config, Estimates(latency=model, host_bytes_per_second=1e12, unit_bytes=UNIT_BYTES))
    rng, num_loaded, num_drafts = random.Random(0), 0, 0
    for step in range(600):
        now = step / 100
        if step % 3 == 0 and step < 400:
            prompt = [rng.randrange(900) for _ in range(100)]
            core.add_request(step, prompt, max_tokens=40, arrival_time=now, session_id=f"s{rng.randrange(8)}")
        if step % 2 == 0 and step < 400:
            draft = [rng.randrange(900) for _ in range(40)]
            session = f"s{rng.randrange(8)}"
            advice = core.advise(session, AdvisoryEvent.TYPING, now, lease_seconds=1.0, draft_token_ids=draft)
            num_drafts += advice[3] == SessionAction.DRAFT_PREFILL
        plan = core.schedule(now)
        loaded = plan.recomputed_layers < NUM_LAYERS
        num_loaded += int(plan.uncached_tokens[loaded].sum()) if len(loaded) else 0
        moves = plan.move_ids.tolist()
        if plan:
            core.commit(np.full(len(plan.sample_seqs), 7, np.int32), now + 0.01)
        core.complete_moves(moves)
        core.check_invariants()
    assert num_drafts > 0
    assert core.stats()["num_loaded_tokens"] == num_loaded > 0


def test_copies_that_take_longer_than_computing_are_left() -> None:
    core, stats = crowded(1e5)
    assert core.splits == []
    assert stats["num_loaded_tokens"] == 0
    assert stats["num_recomputed_tokens"] > 0


def test_where_the_speed_of_copies_is_unknown_all_is_recomputed() -> None:
    core, _ = crowded(1e-300)
    assert core.splits == []


@pytest.mark.parametrize("prefill_token", [1e-7, 3e-6, 3e-5])
def test_between_the_two_as_many_layers_are_recomputed_as_hide_the_copies(prefill_token: float) -> None:
    runs = [crowded(speed, prefill_token=prefill_token)[0] for speed in (1e7, 1e8, 1e9)]
    assert all(run.splits for run in runs)  # each of which is the planner's
    most = [max(layers[0] for layers, _ in run.splits) for run in runs]
    assert most == sorted(most, reverse=True)
    assert most[0] > 0 or prefill_token > 1e-5


def test_a_step_loads_no_more_than_the_lanes_hold() -> None:
    core, _ = crowded(1e12, num_copy_blocks=3)
    assert core.splits
    assert all(sum(tokens) <= 3 * BLOCK for _, tokens in core.splits)


@pytest.mark.parametrize(("prefill_token", "saved_ratio"), [(1e-5, 0.3), (2e-5, 0.05)])
def test_what_loading_saves_lets_more_requests_in_at_a_time(prefill_token: float, saved_ratio: float) -> None:
    _, alone = crowded(1e5, prefill_token=prefill_token)
    _, with_copies = crowded(1e12, prefill_token=prefill_token)
    assert alone["num_loaded_tokens"] == 0
    assert with_copies["num_loaded_tokens"] > 0
    assert with_copies["num_steps"] < (1 - saved_ratio) * alone["num_steps"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"num_copy_blocks": 1, "enable_prefix_caching": False, "enable_partial_caching": True},
            "needs num_host_blocks",
        ),
        ({"num_copy_blocks": 1, "num_host_blocks": 4}, "enable_partial_caching"),
        ({"num_host_blocks": 4, "enable_prefix_caching": False}, "or enable_partial_caching"),
        (
            {"num_host_blocks": 4, "enable_disk": True, "enable_prefix_caching": False, "enable_partial_caching": True},
            "enable_disk needs enable_prefix_caching",
        ),
    ],
)
def test_a_wrong_configuration_is_told_so(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Scheduler(SchedulerConfig(num_units=64, num_layers=8, **settings))

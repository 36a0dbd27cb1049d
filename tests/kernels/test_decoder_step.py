"""The native step against the same kernels called one by one: every number is the same, to the last bit."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fakes.tiny_checkpoints import FAMILIES, VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, Scheduler, SchedulerConfig
from worker import _kernels, ops
from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import ALL_LANDED, PagedPool
from worker.forward.forward import Forward, LayerByLayer, NativeForward
from worker.forward.step_inputs import StepInputs, apply_block_table_changes, sampled_tokens
from worker.models.decoder import DecoderModel
from worker.models.decoder_weights import decoder_weights
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.runner.make_forward import make_forward

NATIVE_FAMILIES = [family for family in FAMILIES if not family.startswith("opt")]
BLOCK_SIZE, NUM_UNITS, LAYERS_PER_UNIT, MAX_SEQS, MAX_TOKENS = 8, 400, 2, 8, 40


@pytest.fixture(scope="module", params=NATIVE_FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)


def load(folder: Path, dtype: str = "float32", quantization: str | None = None) -> DecoderModel:
    return load_model(folder, read_model_config(folder), dtype=dtype, quantization=quantization)[0]


def make_pool(model: DecoderModel, dtype: torch.dtype, int8_rows: Collection[int] | None = None) -> PagedPool:
    config = model.config
    num_groups = -(-config.num_layers // LAYERS_PER_UNIT)
    size = vector_size(config.num_kv_heads, config.head_dim, dtype, has_int8_rows=int8_rows is not None)
    junk = 1 if dtype is torch.int8 else 1e4
    data = torch.full((NUM_UNITS, LAYERS_PER_UNIT, BLOCK_SIZE, size), junk, dtype=dtype)
    table = torch.zeros(MAX_SEQS, num_groups, 2, 256 // BLOCK_SIZE, dtype=torch.int32)
    rows = None if int8_rows is None else torch.tensor([r in int8_rows for r in range(MAX_SEQS)], dtype=torch.uint8)
    return PagedPool(data, table, config.num_kv_heads, config.head_dim, int8_rows=rows)


class World:
    """Random requests under the real scheduler: chunks, decodes and both in one step."""

    def __init__(self, model: DecoderModel, dtype: torch.dtype, int8_rows: Collection[int] | None = None) -> None:
        self.pools = [make_pool(model, dtype, int8_rows) for _ in range(2)]
        layer_by_layer = LayerByLayer(model, self.pools[1], StepInputs(self.pools[1]))
        self.forwards: list[Forward] = [
            make_forward(model, self.pools[0], max_num_seqs=MAX_SEQS),
            layer_by_layer,
        ]
        self.core = Scheduler(
            SchedulerConfig(
                num_units=NUM_UNITS,
                num_layers=model.config.num_layers,
                layers_per_unit=LAYERS_PER_UNIT,
                block_size=BLOCK_SIZE,
                max_num_seqs=MAX_SEQS,
                max_num_batched_tokens=MAX_TOKENS,
                max_model_len=256,
            )
        )

    def add_requests(self, lengths: list[int], seed: int) -> None:
        rng = random.Random(seed)
        for i, length in enumerate(lengths, 1):
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(length)]
            self.core.add_request(i, prompt, max_tokens=rng.randrange(3, 12))

    def run(self) -> int:
        """Returns how many steps were compared."""
        num_steps = 0
        while self.core.has_work():
            plan = self.core.schedule(0.0)
            logits = [self.step(plan, i) for i in range(2)]
            assert torch.equal(*logits)
            for forward in self.forwards:
                assert forward.greedy_tokens(plan).tolist() == logits[0].argmax(-1).tolist()
                tokens, of_tokens = forward.greedy(plan)
                assert tokens.tolist() == logits[0].argmax(-1).tolist()
                assert torch.equal(of_tokens, logits[0])
            assert torch.equal(*(pool.data.view(torch.uint8) for pool in self.pools))
            self.core.commit(logits[0].argmax(-1).to(torch.int32).numpy(), 0.0)
            num_steps += 1
        return num_steps

    def step(self, plan: BatchPlan, which: int) -> torch.Tensor:
        apply_block_table_changes(plan, self.pools[which])
        sampled = sampled_tokens(plan)
        return self.forwards[which].logits(plan, sampled).clone()


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize(
    ("dtype", "quantization"), [(torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, "int8")]
)
def test_equals_its_kernels_one_by_one(folder: Path, dtype: torch.dtype, quantization: str | None) -> None:
    world = World(load(folder, str(dtype).removeprefix("torch."), quantization), dtype)
    assert isinstance(world.forwards[0], NativeForward)
    world.add_requests([1, 5, 70, 17, 100, 33], seed=3)
    assert world.run() > 10


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_may_be_of_several_forms(tmp_path: Path, dtype: torch.dtype) -> None:
    """As in checkpoints of which some layers were rounded."""
    folder = write_checkpoint(tmp_path)
    name = str(dtype).removeprefix("torch.")
    whole, bytes_, halves = (load(folder, name, quantization) for quantization in (None, "int8", "int4"))
    whole.layers[0] = replace(bytes_.layers[0], mlp=halves.layers[0].mlp)
    whole.layers[1].mlp.down = halves.layers[1].mlp.down
    world = World(whole, dtype)
    assert isinstance(world.forwards[0], NativeForward)
    world.add_requests([1, 5, 70, 17], seed=3)
    assert world.run() > 5


@pytest.mark.usefixtures("cpu_device")
def test_the_cache_may_be_in_int8(folder: Path) -> None:
    world = World(load(folder, "bfloat16"), torch.int8)
    world.add_requests([1, 5, 70, 17, 100, 33], seed=3)
    assert world.run() > 10


@pytest.mark.usefixtures("cpu_device")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_some_rows_may_be_in_int8(folder: Path, dtype: torch.dtype) -> None:
    """Of the units that the scheduler gave a row for K and V, those at the first places are its units for both."""
    world = World(load(folder, str(dtype).removeprefix("torch.")), dtype, int8_rows=[1, 2, 4])
    assert isinstance(world.forwards[0], NativeForward)
    world.add_requests([1, 5, 70, 17, 100, 33], seed=3)
    assert world.run() > 10


def test_hidden_states_equal_those_layer_by_layer(tmp_path: Path) -> None:
    world = World(load(write_checkpoint(tmp_path)), torch.float32)
    world.add_requests([9, 20, 30], seed=4)
    plan = world.core.schedule(0.0)
    for pool in world.pools:
        apply_block_table_changes(plan, pool)
    for tokens in ([0, 3, 4, 38], list(range(plan.num_tokens)), []):
        indices = torch.tensor(tokens, dtype=torch.int32).numpy()
        native, expected = (forward.hidden(plan, indices) for forward in world.forwards)
        assert torch.equal(native, expected)


@pytest.mark.parametrize("which", [0, 1])
def test_waits_for_each_layer_group_that_is_on_its_way(which: int, tmp_path: Path) -> None:
    world = World(load(write_checkpoint(tmp_path)), torch.float32)
    world.add_requests([70, 33], seed=5)
    for _ in range(4):
        plan = world.core.schedule(0.0)
        logits = [world.step(plan, i) for i in range(2)]
        world.core.commit(logits[0].argmax(-1).to(torch.int32).numpy(), 0.0)
    plan = world.core.schedule(0.0)
    expected = world.step(plan, 1 - which)
    pool = world.pools[which]
    apply_block_table_changes(plan, pool)
    num_blocks = (plan.seq_lens[0] - 1) // BLOCK_SIZE
    units = pool.block_table[plan.rows[0], :, :, :num_blocks].flatten(1).long()  # by layer group
    content = [pool.data[of_group].clone() for of_group in units]
    pool.data[units.flatten()] = float("nan")
    # where a group's first layer puts K of the new token, just before it waits
    row, position = int(plan.rows[0]), int(plan.seq_lens[0]) - 1
    new_units = pool.block_table[row, :, 0, position // BLOCK_SIZE].tolist()
    places = [pool.data[unit, 0, position % BLOCK_SIZE] for unit in new_units]
    for place in places:
        place.fill_(float("nan"))
    ops.land(pool, 0)
    found: list[torch.Tensor] = []
    step = threading.Thread(target=lambda: found.append(world.step(plan, which)))
    step.start()
    for group, of_group in enumerate(units):
        while places[group].isnan().any() and step.is_alive():
            os.sched_yield()
        assert all(place.isnan().all() for place in places[group + 1 :])
        pool.data[of_group] = content[group]
        ops.land(pool, group + 1)
    step.join()
    ops.land(pool, ALL_LANDED)
    assert torch.equal(found[0], expected)


def test_other_families_run_layer_by_layer(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path, "opt"))
    assert decoder_weights(model) is None
    forward = make_forward(model, make_pool(model, torch.float32), max_num_seqs=2)
    assert isinstance(forward, LayerByLayer)


def test_refuses_weights_that_do_not_fit(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path))
    weights = decoder_weights(model)
    assert weights is not None
    weights.layers[1] = replace(weights.layers[1], mlp_norm=torch.ones(3))
    with pytest.raises(ValueError, match="norm"):
        ops.make_decoder_step(weights, make_pool(model, torch.float32), 1)


def test_refuses_weights_packed_for_another_instruction_set(tmp_path: Path) -> None:
    world = World(load(write_checkpoint(tmp_path)), torch.float32)
    world.add_requests([9], seed=4)
    before = _kernels.isa()
    _kernels.set_isa("generic" if before != "generic" else "avx2")
    try:
        with pytest.raises(RuntimeError, match="another instruction set"):
            world.step(world.core.schedule(0.0), 0)
    finally:
        _kernels.set_isa(before)


def test_times_its_stages(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path))
    weights = decoder_weights(model)
    assert weights is not None
    step = ops.make_decoder_step(weights, make_pool(model, torch.float32), 1)
    assert set(step.take_stage_seconds().values()) == {0.0}
    world = World(model, torch.float32)
    world.add_requests([9], seed=4)
    plan = world.core.schedule(0.0)
    step.logits(plan, sampled_tokens(plan))
    assert all(seconds > 0 for seconds in step.take_stage_seconds().values())


def test_refuses_more_logits_than_it_was_made_for(tmp_path: Path) -> None:
    model = load(write_checkpoint(tmp_path))
    weights = decoder_weights(model)
    assert weights is not None
    world = World(model, torch.float32)
    world.add_requests([9], seed=4)
    step = ops.make_decoder_step(weights, make_pool(model, torch.float32), 2)
    with pytest.raises(ValueError, match="more than 2"):
        step.logits(world.core.schedule(0.0), torch.arange(3, dtype=torch.int32).numpy())

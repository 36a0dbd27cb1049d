"""What a step gets on the device is its plan, in one copy."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch

from fakes.device_watch import DeviceWatch
from fakes.form_driver import Choices, FormDriver
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, Scheduler, SchedulerConfig
from schedcore.api.types import EngineRequest
from worker.batch.paged_pool import PagedPool, StepBatch
from worker.batch.staging import Parcel, Staging
from worker.forms.form_inputs import FormInputs
from worker.forward.step_inputs import StepInputs, apply_block_table_changes, sampled_tokens, send_with_changes
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.runner.executor import StepResult
from worker.runner.model_runner import ModelRunner

MAX_SEQS, MAX_TOKENS, BLOCK_SIZE, NUM_UNITS, MAX_LEN = 6, 48, 4, 96, 128
CPU, META = torch.device("cpu"), torch.device("meta")


def make_pool(data_device: torch.device = CPU, table_device: torch.device = CPU) -> PagedPool:
    data = torch.zeros(NUM_UNITS, 2, BLOCK_SIZE, 32, device=data_device)
    table = torch.zeros(MAX_SEQS, 2, 2, MAX_LEN // BLOCK_SIZE, dtype=torch.int32, device=table_device)
    return PagedPool(data, table, 2, 16)


def make_core(lengths: list[int], seed: int) -> Scheduler:
    core = Scheduler(
        SchedulerConfig(
            num_units=NUM_UNITS,
            num_layers=4,
            layers_per_unit=2,
            block_size=BLOCK_SIZE,
            max_num_seqs=MAX_SEQS,
            max_num_batched_tokens=MAX_TOKENS,
            max_model_len=MAX_LEN,
        )
    )
    rng = random.Random(seed)
    for i, length in enumerate(lengths, 1):
        core.add_request(i, [rng.randrange(100) for _ in range(length)], max_tokens=rng.randrange(2, 20))
    return core


def commit(core: Scheduler, plan: BatchPlan) -> None:
    core.commit(np.arange(len(plan.sample_seqs), dtype=np.int32), 0.0)


def check_batch(batch: StepBatch, plan: BatchPlan) -> None:
    for name in ("token_ids", "positions", "token_row", "query_start", "seq_lens", "rows"):
        tensor, array = getattr(batch, name), getattr(plan, name)
        assert tensor.tolist() == array.tolist(), name
        assert (tensor.dtype, tensor.is_contiguous()) == (torch.int32, True)
    assert batch.sample_tokens.tolist() == [plan.query_start[seq + 1] - 1 for seq in plan.sample_seqs]
    assert batch.sample_tokens.dtype is torch.int64
    assert batch.max_query_len == max(np.diff(plan.query_start))
    assert batch.max_seq_len == max(plan.seq_lens)


@pytest.mark.parametrize("seed", range(4))
def test_a_batch_is_its_plan(seed: int) -> None:
    rng = random.Random(seed)
    core = make_core([rng.randrange(1, 60) for _ in range(12)], seed)
    inputs, num_steps = StepInputs(make_pool()), 0
    while core.has_work():
        plan = core.schedule(0.0)
        others = Parcel(np.arange(num_steps, dtype=np.float32))
        check_batch(inputs.load(plan, sampled_tokens(plan), others), plan)
        assert len(others.tensors[0]) == num_steps
        commit(core, plan)
        num_steps += 1
    assert num_steps > 20


def test_the_block_table_follows_changes_that_come_along() -> None:
    core = make_core([30, 50, 7, 41, 3, 22, 38], seed=1)
    expected, staging = make_pool(), Staging(CPU)
    found = make_pool(META)  # so that changes are applied where they arrive
    while core.has_work():
        plan = core.schedule(0.0)
        apply_block_table_changes(plan, expected)
        send_with_changes(staging, plan, found)
        assert torch.equal(found.block_table, expected.block_table)
        commit(core, plan)
    assert expected.block_table.any()


def test_a_plan_goes_to_the_device_in_one_copy() -> None:
    core = make_core([30, 50, 7], seed=2)
    inputs = StepInputs(make_pool(META, META))
    while core.has_work():
        plan = core.schedule(0.0)
        with DeviceWatch() as watch:
            inputs.load(plan, sampled_tokens(plan), Parcel(np.ones(3, np.float32)))
        assert len(watch.sources) == 1
        assert not watch.waits
        commit(core, plan)


class CountingRunner:
    """Runs plans, and loads each into a pool on a device that computes nothing."""

    def __init__(self, runner: ModelRunner, inputs: FormInputs) -> None:
        self._runner, self._inputs = runner, inputs
        self.num_copies: list[int] = []

    def add_request(self, request: EngineRequest) -> None:
        self._runner.add_request(request)

    def remove_request(self, request_id: int) -> None:
        self._runner.remove_request(request_id)

    def execute(self, plan: BatchPlan) -> StepResult:
        with DeviceWatch() as watch:
            self._inputs.load(plan, sampled_tokens(plan))
        assert not watch.waits
        self.num_copies.append(len(watch.sources))
        return self._runner.execute(plan)


def test_a_plan_with_forms_too(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, "llama-mha-tied")
    model = load_model(folder, read_model_config(folder), dtype="float32")[0]
    config = model.config
    pools = []
    for device in (CPU, META):
        data = torch.zeros(240, 2, BLOCK_SIZE, config.kv_size, device=device)
        table = torch.zeros(5, 2, 2, 20, dtype=torch.int32, device=device)
        pools.append(PagedPool(data, table, config.num_kv_heads, config.head_dim, num_workspace_units=40))
    runner = ModelRunner(model, pools[0], max_num_seqs=5)
    counting = CountingRunner(runner, FormInputs(pools[1], config.num_layers))
    rng = random.Random(3)
    requests = [
        EngineRequest(i, [rng.randrange(VOCAB_SIZE) for _ in range(n)], 8) for i, n in enumerate((50, 3, 17, 33))
    ]
    driver = FormDriver(counting, pools[0], Choices(), 3, 64)
    driver.run(requests)
    assert driver.met.hidden > 0
    assert driver.met.uncached > 0
    assert set(counting.num_copies) == {1}

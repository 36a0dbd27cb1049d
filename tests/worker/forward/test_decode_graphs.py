"""Replayed decodes are those of the eager path, whatever they are padded to; what cannot be replayed is not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan, Scheduler, SchedulerConfig
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, SamplingParams
from worker.batch.paged_pool import ALL_LANDED, PagedPool
from worker.batch.staging import Parcel
from worker.forward.decode_graphs import DecodeGraphs, Rerun
from worker.forward.decode_inputs import DecodeInputs, batch_sizes
from worker.forward.forward import LayerByLayer
from worker.forward.step_inputs import StepInputs, apply_block_table_changes, sampled_tokens
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.runner.loaded_runner import graph_bytes, graph_sizes
from worker.runner.memory import allocate_pool, plan_memory

MAX_SEQS, BLOCK_SIZE = 11, 4
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama", "qwen3", "opt", "opt-norm-last"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return load_model(folder, read_model_config(folder), dtype="float32")[0]


class World:
    """The real scheduler; every step runs twice, replayed and eagerly, each with a pool of its own."""

    def __init__(self, model: DecoderModel, sizes: list[int]) -> None:
        config = EngineConfig(
            model="", max_num_seqs=MAX_SEQS, max_num_batched_tokens=64, block_size=BLOCK_SIZE, layers_per_unit=2,
            max_model_len=64, cache_memory_bytes=2 << 20,
        )  # fmt: skip
        memory = plan_memory(config, model.config, torch.float32, 0)
        self.pools = [
            allocate_pool(memory, config, model.config, torch.float32, CPU, has_padding_row=has_padding_row)
            for has_padding_row in (True, False)
        ]
        self.num_units = memory.num_units
        eager = [LayerByLayer(model, pool, StepInputs(pool)) for pool in self.pools]
        self.graphs = DecodeGraphs(model, self.pools[0], eager[0], Rerun(), sizes)
        self.eager = eager[1]
        self.core = Scheduler(
            SchedulerConfig(
                num_units=memory.num_units, num_layers=model.config.num_layers, layers_per_unit=2,
                block_size=BLOCK_SIZE, max_num_seqs=MAX_SEQS, max_num_batched_tokens=64, max_model_len=64,
            )
        )  # fmt: skip

    def add_requests(self, count: int, seed: int, num_tokens: int = 5) -> None:
        rng = random.Random(seed)
        for i in range(count):
            prompt = [rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 30))]
            self.core.add_request(1000 * seed + i + 1, prompt, max_tokens=num_tokens)

    def schedule(self) -> BatchPlan:
        plan = self.core.schedule(0.0)
        for pool in self.pools:
            apply_block_table_changes(plan, pool)
        return plan

    def step(self) -> BatchPlan:
        """Asserts that both ways give the same tokens, and leave the same in the pool.

        Sums of products are rounded in an order that depends on the size of the batch.
        """
        plan = self.schedule()
        logits = self.graphs.logits(plan, sampled_tokens(plan)).clone()
        expected = self.eager.logits(plan, sampled_tokens(plan))
        assert torch.allclose(logits, expected, rtol=1e-3, atol=1e-3)
        tokens = expected.argmax(-1).tolist()
        assert logits.argmax(-1).tolist() == tokens
        assert torch.allclose(self.pools[0].data[: self.num_units], self.pools[1].data, rtol=1e-3, atol=1e-3)
        self.core.commit(np.array(tokens, np.int32), 0.0)
        return plan


@settings(deadline=None)
@given(st.integers(1, 600), st.data())
def test_batch_sizes_reach_the_largest_and_pad_little(largest: int, data: st.DataObject) -> None:
    sizes = batch_sizes(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    num = data.draw(st.integers(1, largest))
    size = next(size for size in sizes if size >= num)
    assert size < (1.5 if num > 8 else 2) * num
    assert len(sizes) <= 2 * largest.bit_length()


def test_the_same_batch_gives_the_same_bits(model: DecoderModel) -> None:
    world = World(model, [3])
    world.add_requests(3, seed=1, num_tokens=9)
    while world.core.has_work():
        plan = world.schedule()
        logits = [forward.logits(plan, sampled_tokens(plan)).clone() for forward in (world.graphs, world.eager)]
        assert torch.equal(*logits)
        tokens, of_tokens = world.graphs.greedy(plan)
        assert torch.equal(of_tokens, logits[0])
        assert tokens.tolist() == world.graphs.greedy_tokens(plan).tolist() == logits[0].argmax(-1).tolist()
        world.core.commit(logits[0].argmax(-1).to(torch.int32).numpy(), 0.0)
    assert torch.equal(world.pools[0].data[: world.num_units], world.pools[1].data)
    assert world.graphs.num_replayed >= 8


def test_sizes_are_recorded_from_the_largest_down(model: DecoderModel) -> None:
    done = []
    world = World(model, [1, 2, 4])
    eager = LayerByLayer(model, world.pools[0], StepInputs(world.pools[0]))
    graphs = DecodeGraphs(model, world.pools[0], eager, Rerun(), [1, 2, 4], lambda *n: done.append(n))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert list(graphs._replays) == [4, 2, 1]


def test_a_step_of_any_number_of_decodes_equals_the_eager_one(model: DecoderModel) -> None:
    world = World(model, batch_sizes(MAX_SEQS))
    seen = set()
    for num in range(1, MAX_SEQS + 1):
        world.add_requests(num, seed=num)
        while world.core.has_work():
            before = world.graphs.num_replayed
            plan = world.step()
            is_decode = plan.num_tokens == plan.num_seqs == len(plan.sample_seqs)
            assert world.graphs.num_replayed - before == is_decode
            if is_decode:
                seen.add(plan.num_seqs)
    assert seen == set(range(1, MAX_SEQS + 1))


def test_steps_of_everything_mixed_equal_the_eager_ones(model: DecoderModel) -> None:
    world = World(model, [2, 6])
    for seed in range(1, 5):
        world.add_requests(3, seed, num_tokens=12)
        for _ in range(5):
            world.step()
    while world.core.has_work():
        world.step()
    assert world.graphs.num_replayed > 10


def test_padding_writes_to_no_unit_of_the_scheduler(model: DecoderModel) -> None:
    world = World(model, [MAX_SEQS])
    pool = world.pools[0]
    pool.data[: world.num_units] = float("nan")
    world.graphs._run(MAX_SEQS)
    assert pool.data[: world.num_units].isnan().all()
    assert not pool.data[world.num_units].isnan().any()
    assert set(pool.block_table[-1].flatten().tolist()) == {world.num_units}


def inputs_and_plan(model: DecoderModel, num_requests: int) -> tuple[PagedPool, DecodeInputs, BatchPlan]:
    world = World(model, [1])
    world.add_requests(num_requests, seed=1)
    plan = world.step()
    while plan.num_tokens != plan.num_seqs:
        plan = world.schedule()
        if plan.num_tokens != plan.num_seqs:
            world.core.commit(np.zeros(len(plan.sample_seqs), np.int32), 0.0)
    return world.pools[0], DecodeInputs(world.pools[0], [1, 2, 4]), plan


def test_what_a_recording_cannot_take(model: DecoderModel) -> None:
    pool, inputs, plan = inputs_and_plan(model, 3)
    assert inputs.can_take(plan)
    assert not inputs.can_take(plan, Parcel(np.zeros(100_000)))  # more than the buffer
    pool.arrivals.num_landed[0] = 0  # its units are on their way
    assert not inputs.can_take(plan)
    pool.arrivals.num_landed[0] = ALL_LANDED
    assert inputs.can_take(plan)
    assert not inputs_and_plan(model, 5)[1].can_take(inputs_and_plan(model, 5)[2])


def test_a_batch_is_its_plan_and_padding_at_addresses_that_stay(model: DecoderModel) -> None:
    _, inputs, plan = inputs_and_plan(model, 3)
    addresses = [tensor.data_ptr() for tensor in (inputs.batches[4].token_ids, inputs.batches[4].seq_lens)]
    parcel = Parcel(np.arange(3, dtype=np.float32))
    assert inputs.load(plan, parcel) == 4
    batch = inputs.batches[4]
    assert [tensor.data_ptr() for tensor in (batch.token_ids, batch.seq_lens)] == addresses
    assert batch.token_ids.tolist() == [*plan.token_ids, 0]
    assert batch.positions.tolist() == [*plan.positions, 0]
    assert batch.rows.tolist() == batch.token_row.tolist() == [*plan.rows, MAX_SEQS]
    assert batch.seq_lens.tolist() == [*plan.seq_lens, 1]
    assert batch.query_start.tolist() == [0, 1, 2, 3, 4]
    assert parcel.tensors[0].tolist() == [0, 1, 2]
    assert batch.max_seq_len >= 64


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cuda", {"max_num_seqs": 12}, [1, 2, 4, 8, 12]),
        ("cuda", {"max_cudagraph_capture_size": 5}, [1, 2, 4, 5]),
        ("cuda", {"enforce_eager": True}, []),
        ("cpu", {}, []),
    ],
)
def test_what_is_recorded(device: str, settings: dict[str, int], expected: list[int]) -> None:
    assert graph_sizes(EngineConfig(model="", **settings), torch.device(device)) == expected


def test_memory_is_set_aside_for_recording(model: DecoderModel) -> None:
    assert graph_bytes(model.config, [], torch.bfloat16) == 0
    assert graph_bytes(model.config, [1, 64], torch.bfloat16) > 64 * 6 * VOCAB_SIZE


KINDS = (SamplingParams(temperature=0.0), SamplingParams(seed=1), SamplingParams(seed=2, top_k=8, num_logprobs=1))


@pytest.mark.gpu
@pytest.mark.parametrize("family", ["llama", "qwen3", "opt"])
def test_on_a_cuda_device_tokens_are_those_of_the_eager_path(family: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, family)
    rng = random.Random(1)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(rng.randrange(1, 40))] for _ in range(13)]
    requests = [EngineRequest(i, prompt, 20, KINDS[i % 3]) for i, prompt in enumerate(prompts)]
    engines = [make_engine(folder, device="cuda", enforce_eager=eager) for eager in (False, True)]
    replayed, eager = (output_tokens(run(engine, requests)) for engine in engines)
    assert replayed == eager
    assert engines[0]._executor._forward.num_replayed > 10  # type: ignore[attr-defined]


@pytest.mark.gpu
def test_on_a_cuda_device_decoding_takes_no_more_memory(tmp_path: Path) -> None:
    engine = make_engine(write_checkpoint(tmp_path), device="cuda")
    prompts = [[1, 2, 3]] * 9
    run(engine, greedy_requests(prompts, 30))
    before = torch.cuda.memory_stats()
    run(engine, greedy_requests(prompts, 60, first_id=100))
    after = torch.cuda.memory_stats()
    for name in ("reserved_bytes.all.current", "allocated_bytes.all.current", "segment.all.allocated"):
        assert after[name] == before[name], name

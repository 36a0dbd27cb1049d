"""Replayed steps are those of the eager path, whatever they are padded to; what cannot be replayed is not."""

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
from worker.forward.forward import LayerByLayer
from worker.forward.recorded_inputs import RecordedInputs
from worker.forward.step_graphs import Rerun, StepGraphs
from worker.forward.step_inputs import StepInputs, apply_block_table_changes, sampled_tokens
from worker.forward.step_size import LEAST_TOKENS, SEQUENCES, StepSize, smallest, step_sizes, token_counts
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import read_model_config
from worker.runner.loaded_runner import graph_bytes, graph_sizes
from worker.runner.memory import allocate_pool, plan_memory

MAX_SEQS, BLOCK_SIZE = 11, 4
MAX_TOKENS = 64
CPU = torch.device("cpu")


@pytest.fixture(scope="module", params=["llama", "qwen3", "opt", "opt-norm-last"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DecoderModel:
    folder = write_checkpoint(tmp_path_factory.mktemp(request.param), request.param)
    return load_model(folder, read_model_config(folder), dtype="float32")[0]


class World:
    """The real scheduler; every step runs twice, replayed and eagerly, each with a pool of its own."""

    def __init__(self, model: DecoderModel, sizes: list[StepSize]) -> None:
        config = EngineConfig(
            model="", max_num_seqs=MAX_SEQS, max_num_batched_tokens=MAX_TOKENS, block_size=BLOCK_SIZE,
            layers_per_unit=2, max_model_len=64, cache_memory_bytes=2 << 20,
        )  # fmt: skip
        memory = plan_memory(config, model.config, torch.float32, 0)
        self.pools = [
            allocate_pool(memory, config, model.config, torch.float32, CPU, has_padding_row=has_padding_row)
            for has_padding_row in (True, False)
        ]
        self.num_units = memory.num_units
        eager = [LayerByLayer(model, pool, StepInputs(pool)) for pool in self.pools]
        self.graphs = StepGraphs(model, self.pools[0], eager[0], Rerun(), sizes)
        self.eager = eager[1]
        self.core = Scheduler(
            SchedulerConfig(
                num_units=memory.num_units, num_layers=model.config.num_layers, layers_per_unit=2,
                block_size=BLOCK_SIZE, max_num_seqs=MAX_SEQS, max_num_batched_tokens=MAX_TOKENS, max_model_len=64,
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


def decodes(*counts: int) -> list[StepSize]:
    return [StepSize(n, n) for n in counts]


def run_mixed(world: World, steps_between: int) -> int:
    """Prompts that come while others decode. Returns how many steps there were."""
    num_steps = 0
    for seed in range(1, 5):
        world.add_requests(3, seed, num_tokens=12)
        for _ in range(steps_between):
            world.step()
            num_steps += 1
    while world.core.has_work():
        world.step()
        num_steps += 1
    return num_steps


@settings(deadline=None)
@given(st.integers(1, 600), st.data())
def test_sizes_reach_the_largest_and_pad_little(largest: int, data: st.DataObject) -> None:
    sizes = token_counts(largest)
    assert sizes == sorted(set(sizes))
    assert (sizes[0], sizes[-1]) == (1, largest)
    num = data.draw(st.integers(1, largest))
    size = next(size for size in sizes if size >= num)
    assert size < (1.5 if num > 8 else 2) * num
    assert len(sizes) <= 2 * largest.bit_length()


@given(st.integers(1, 600), st.integers(1, 300), st.data())
def test_every_step_fits_a_size_that_is_not_much_larger(max_tokens: int, max_seqs: int, data: st.DataObject) -> None:
    sizes = step_sizes(max_tokens, max_seqs)
    assert len(sizes) == len(set(sizes))
    num_seqs = data.draw(st.integers(1, min(max_seqs, max_tokens)))
    num_tokens = data.draw(st.sampled_from([num_seqs, data.draw(st.integers(num_seqs, max_tokens))]))
    size = smallest(sizes, num_tokens, num_seqs)
    if num_seqs != num_tokens and max_tokens < LEAST_TOKENS:
        assert size is None
        return
    assert size is not None
    assert num_tokens <= size.num_tokens <= max(LEAST_TOKENS, 1.5 * num_tokens, 2 * min(num_tokens, 8))
    assert num_seqs <= size.num_seqs <= max(SEQUENCES[0], 4 * num_seqs)
    assert size.is_of_decodes == (num_tokens == num_seqs)
    assert smallest(sizes, max_tokens + 1, 1) is None


def test_the_same_batch_gives_the_same_bits(model: DecoderModel) -> None:
    world = World(model, decodes(3))
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
    sizes = decodes(1, 2, 4)
    world = World(model, sizes)
    eager = LayerByLayer(model, world.pools[0], StepInputs(world.pools[0]))
    graphs = StepGraphs(model, world.pools[0], eager, Rerun(), sizes, lambda *n: done.append(n))
    assert done == [(1, 3), (2, 3), (3, 3)]
    assert list(graphs._replays) == sizes[::-1]


def test_a_step_of_any_number_of_decodes_equals_the_eager_one(model: DecoderModel) -> None:
    world = World(model, decodes(*token_counts(MAX_SEQS)))
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
    world = World(model, decodes(2, 6))
    run_mixed(world, 5)
    assert world.graphs.num_replayed > 10


@pytest.mark.parametrize(
    "sizes",
    [step_sizes(MAX_TOKENS, MAX_SEQS), [StepSize(64, 11)], [StepSize(64, 6)]],
    ids=["all", "one", "few sequences"],
)
def test_steps_with_chunks_are_replayed_too(model: DecoderModel, sizes: list[StepSize]) -> None:
    world = World(model, sizes)
    num_steps = run_mixed(world, 2 if len(sizes) > 2 else 1)
    assert world.graphs.num_replayed == num_steps if len(sizes) > 2 else 2 <= world.graphs.num_replayed < num_steps


def test_chunks_that_do_not_sample_are_replayed(model: DecoderModel) -> None:
    """A prompt in pieces beside decodes: fewer samples than sequences, and steps without any."""
    world = World(model, step_sizes(16, MAX_SEQS))
    world.add_requests(2, seed=1, num_tokens=30)
    world.core.add_request(9, [7] * 50, max_tokens=2)
    num_fitting = 0
    while world.core.has_work():
        num_fitting += world.step().num_tokens <= 16
    assert world.graphs.num_replayed == num_fitting


@pytest.mark.parametrize("size", [StepSize(MAX_SEQS, MAX_SEQS), StepSize(40, 5)], ids=["decodes", "chunks"])
def test_padding_writes_to_no_unit_of_the_scheduler(model: DecoderModel, size: StepSize) -> None:
    world = World(model, [size])
    pool = world.pools[0]
    pool.data[: world.num_units] = float("nan")
    world.graphs._inputs._pad(0, 0)
    world.graphs._inputs._staging.send(world.graphs._inputs._parcel)
    world.graphs._run(size)
    assert pool.data[: world.num_units].isnan().all()
    assert set(pool.block_table[-1].flatten().tolist()) == {world.num_units}


def inputs_and_plan(model: DecoderModel, num_requests: int) -> tuple[PagedPool, RecordedInputs, BatchPlan]:
    """Of a step of decodes alone."""
    world = World(model, decodes(1))
    world.add_requests(num_requests, seed=1)
    plan = world.step()
    while plan.num_tokens != plan.num_seqs:
        plan = world.schedule()
        if plan.num_tokens != plan.num_seqs:
            world.core.commit(np.zeros(len(plan.sample_seqs), np.int32), 0.0)
    return world.pools[0], RecordedInputs(world.pools[0], [*decodes(1, 2, 4), StepSize(20, 6)]), plan


def test_what_a_recording_cannot_take(model: DecoderModel) -> None:
    pool, inputs, plan = inputs_and_plan(model, 3)
    samples = sampled_tokens(plan)
    assert inputs.size_of(plan, samples) == StepSize(4, 4)
    assert inputs.size_of(plan, samples, Parcel(np.zeros(100_000))) is None  # more than the buffer
    assert inputs.size_of(plan, np.zeros(5, np.int32)) is None  # more samples than sequences, as of a prompt's tokens
    pool.arrivals.num_landed[0] = 0  # its units are on their way
    assert inputs.size_of(plan, samples) is None
    pool.arrivals.num_landed[0] = ALL_LANDED
    assert inputs.size_of(plan, samples) == StepSize(4, 4)
    _, inputs, plan = inputs_and_plan(model, 5)
    assert inputs.size_of(plan, sampled_tokens(plan)) is None


def test_a_batch_is_its_plan_and_padding_at_addresses_that_stay(model: DecoderModel) -> None:
    _, inputs, plan = inputs_and_plan(model, 3)
    size = StepSize(4, 4)
    batch = inputs.batches[size]
    addresses = [tensor.data_ptr() for tensor in (batch.token_ids, batch.seq_lens, batch.query_start)]
    parcel = Parcel(np.arange(3, dtype=np.float32))
    inputs.load(size, plan, sampled_tokens(plan), parcel)
    batch = inputs.batches[size]
    assert [tensor.data_ptr() for tensor in (batch.token_ids, batch.seq_lens, batch.query_start)] == addresses
    assert batch.token_ids.tolist() == [*plan.token_ids, 0]
    assert batch.positions.tolist() == [*plan.positions, 0]
    assert batch.rows.tolist() == batch.token_row.tolist() == [*plan.rows, MAX_SEQS]
    assert batch.seq_lens.tolist() == [*plan.seq_lens, 1]
    assert batch.query_start.tolist() == [0, 1, 2, 3, 3]
    assert batch.sample_tokens.tolist() == [0, 1, 2, 0]
    assert parcel.tensors[0].tolist() == [0, 1, 2]
    assert batch.max_seq_len >= 64


@pytest.mark.parametrize(
    ("device", "settings", "expected"),
    [
        ("cuda", {"max_num_seqs": 12, "max_num_batched_tokens": 16}, [1, 2, 4, 8, 12, (16, 8), (16, 12)]),
        ("cuda", {"max_cudagraph_capture_size": 5}, [1, 2, 4, 5]),
        ("cuda", {"max_cudagraph_capture_size": 24, "max_num_seqs": 2}, [1, 2, (16, 2), (24, 2)]),
        ("cuda", {"enforce_eager": True}, []),
        ("cpu", {}, []),
    ],
)
def test_what_is_recorded(device: str, settings: dict[str, int], expected: list[int | tuple[int, int]]) -> None:
    sizes = [StepSize(size, size) if isinstance(size, int) else StepSize(*size) for size in expected]
    assert graph_sizes(EngineConfig(model="", **settings), torch.device(device)) == sizes


def test_memory_is_set_aside_for_recording(model: DecoderModel) -> None:
    assert graph_bytes(model.config, [], torch.bfloat16) == 0
    assert graph_bytes(model.config, decodes(1, 64), torch.bfloat16) > 64 * 6 * VOCAB_SIZE


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

"""Whatever form a request's tokens are kept in, its greedy tokens in float32 are those of K and V alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.form_driver import HIDDEN, KV, Choices, FormDriver, Met
from fakes.kernel_device import KernelDevice, has_isa
from fakes.tiny_checkpoints import FAMILIES, VOCAB_SIZE, write_checkpoint
from schedcore._core import BatchPlan
from schedcore.api.types import EngineRequest
from worker.batch.paged_pool import NUM_LANES, PagedPool
from worker.forms.form_forward import FormForward, Int32Array
from worker.forms.layer_copies import make_copy_engine
from worker.models.decoder import DecoderModel
from worker.models.loader import load_model
from worker.models.model_config import ModelConfig, read_model_config
from worker.runner.model_runner import ModelRunner
from worker.tiers.host_tier import HostTier

MAX_SEQS, MAX_TOKENS, MAX_LEN = 5, 64, 80
BLOCK_SIZE = 4
LENGTHS = (58, 1, 3, 4, 17, 33)
NUM_OUTPUT = 12
# Of these X fits one unit: as many KV heads as heads, or heads wider than the hidden size over their number.
HIDDEN_FAMILIES = ("opt", "opt-norm-last", "opt-bare", "llama-mha-tied", "qwen3", "mistral")
GROUPED_FAMILIES = ("llama", "llama-biases", "qwen2-windows")


@dataclass(frozen=True)
class Case:
    folder: Path
    model: DecoderModel
    requests: list[EngineRequest]
    expected: list[list[int]]


def load_case(family: str, folder: Path) -> Case:
    write_checkpoint(folder, family)
    rng = random.Random(family)
    prompts = [[rng.randrange(VOCAB_SIZE) for _ in range(length)] for length in LENGTHS]
    prompts += [prompts[0][:40] + prompts[2], prompts[0][:41]]  # they begin alike
    requests = greedy_requests(prompts, NUM_OUTPUT)
    expected = output_tokens(run(make_engine(folder), requests))
    return Case(folder, load(folder), requests, expected)


def load(folder: Path, dtype: str = "float32", device: str = "cpu") -> DecoderModel:
    return load_model(folder, read_model_config(folder), dtype=dtype, device=torch.device(device))[0]


def make_pool(
    config: ModelConfig,
    num_blocks: int,
    layers_per_unit: int,
    num_workspace_blocks: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    num_lane_blocks: int = 0,
) -> PagedPool:
    """num_blocks: of K and V, each for a request alone."""
    max_blocks = -(-MAX_LEN // BLOCK_SIZE)
    num_groups = -(-config.num_layers // layers_per_unit)
    num_workspace = -(-2 * num_workspace_blocks // layers_per_unit)
    num_lanes = -(-2 * NUM_LANES * num_lane_blocks // layers_per_unit)
    num_units = num_blocks * 2 * num_groups + num_workspace + num_lanes
    data = torch.zeros(num_units, layers_per_unit, BLOCK_SIZE, config.kv_size, dtype=dtype)
    table = torch.zeros(MAX_SEQS, num_groups, 2, max_blocks, dtype=torch.int32)
    data, table = data.to(device), table.to(device)
    return PagedPool(data, table, config.num_kv_heads, config.head_dim, num_workspace, num_lanes)


def check_forms(
    case: Case,
    choices: Choices,
    seed: int,
    *,
    num_blocks: int = 50,
    layers_per_unit: int = 2,
    num_workspace_blocks: int = MAX_LEN // BLOCK_SIZE,
    num_lane_blocks: int = 0,
    model: DecoderModel | None = None,
    device: str = "cpu",
) -> Met:
    """Asserts that the outputs are as expected. model: the case's on `device`. With lanes there is a host."""
    model = model or case.model
    pool = make_pool(
        model.config, num_blocks, layers_per_unit, num_workspace_blocks, device=device, num_lane_blocks=num_lane_blocks
    )
    runner = ModelRunner(model, pool, max_num_seqs=MAX_SEQS)
    with host_of(pool, num_slots=len(case.requests) * MAX_LEN // BLOCK_SIZE) as host:
        num_layers = model.config.num_layers
        driver = FormDriver(runner, pool, choices, seed, MAX_TOKENS, host=host, num_layers=num_layers)
        assert driver.run(case.requests) == case.expected
        return driver.met


@contextmanager
def host_of(pool: PagedPool, num_slots: int) -> Iterator[HostTier | None]:
    """None without lanes for what it has."""
    if pool.num_lane_blocks == 0:
        yield None
        return
    host = HostTier(pool, 2 * pool.num_groups, num_slots)
    pool.arrivals.copy_engine = make_copy_engine(pool, host)
    yield host
    pool.arrivals.copy_engine.close()


@pytest.fixture(scope="module", params=HIDDEN_FAMILIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return load_case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module", params=GROUPED_FAMILIES)
def grouped(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return load_case(request.param, tmp_path_factory.mktemp(request.param))


ONLY_KV = Choices((KV,), can_leave_uncached=False, can_reshape=False)
ONLY_HIDDEN = Choices((HIDDEN,), can_leave_uncached=False, can_reshape=False, can_share=False)


def test_the_driver_itself_is_right(case: Case) -> None:
    met = check_forms(case, ONLY_KV, 1)
    assert (met.hidden, met.uncached, met.projected) == (0, 0, 0)


def test_all_hidden(case: Case) -> None:
    met = check_forms(case, ONLY_HIDDEN, 2)
    assert met.hidden > 1000


def test_hidden_states_on_a_shared_prefix_of_k_and_v(case: Case) -> None:
    choices = Choices(can_leave_uncached=False, can_reshape=False)
    met = [check_forms(case, choices, seed) for seed in range(3)]
    assert all(one.hidden > 100 for one in met)
    assert any(one.shared > 0 for one in met)


def test_greedy_tokens_come_with_their_logits(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """With forms in the plan and without."""

    def greedy_tokens(forward: FormForward, plan: BatchPlan) -> Int32Array:
        tokens, logits = forward.greedy(plan)
        assert tokens.tolist() == logits.argmax(-1).tolist()
        return tokens

    monkeypatch.setattr(FormForward, "greedy_tokens", greedy_tokens)
    met = check_forms(case, Choices(can_leave_uncached=False), 3)
    assert met.hidden > 100


def test_hidden_states_become_k_and_v_in_the_middle(case: Case) -> None:
    met = check_forms(case, Choices((HIDDEN,), can_leave_uncached=False), 4)
    assert met.projected > 10


def test_any_number_of_uncached_tokens(case: Case) -> None:
    met = check_forms(case, Choices((KV,), can_share=False), 5)
    assert met.uncached > 1000


ONLY_UNCACHED = Choices((KV,), can_share=False, can_preempt=False)


@pytest.mark.parametrize("layers_per_unit", [1, 2, 3])
def test_uncached_tokens_of_which_any_number_of_layers_is_loaded(case: Case, layers_per_unit: int) -> None:
    met = check_forms(case, ONLY_UNCACHED, 5, layers_per_unit=layers_per_unit, num_lane_blocks=60)
    assert met.loaded > 200
    assert met.loaded < met.uncached


def test_lanes_for_some_of_the_uncached_tokens(case: Case) -> None:
    met = check_forms(case, ONLY_UNCACHED, 9, num_lane_blocks=5)
    assert 20 < met.loaded < met.uncached / 2


def test_attending_in_parts_while_layers_are_loaded(case: Case) -> None:
    """The workspace holds one request at a time."""
    assert check_forms(case, Choices(can_preempt=False), 10, num_lane_blocks=60).loaded > 100


def test_a_workspace_much_larger_than_a_request(case: Case) -> None:
    assert check_forms(case, Choices(), 6, num_workspace_blocks=1000).hidden > 100


@pytest.mark.parametrize("layers_per_unit", [1, 3])
def test_any_number_of_layers_per_unit(case: Case, layers_per_unit: int) -> None:
    assert check_forms(case, Choices(), 7, layers_per_unit=layers_per_unit).hidden > 0


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(32, 60))
def test_anything_in_any_order(case: Case, seed: int, num_blocks: int) -> None:
    check_forms(case, Choices(), seed, num_blocks=num_blocks)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), num_blocks=st.integers(32, 60), num_lane_blocks=st.integers(1, 40))
def test_anything_in_any_order_with_a_host(case: Case, seed: int, num_blocks: int, num_lane_blocks: int) -> None:
    check_forms(case, Choices(), seed, num_blocks=num_blocks, num_lane_blocks=num_lane_blocks)


def test_random_orders_meet_everything(case: Case) -> None:
    met = [check_forms(case, Choices(), seed, num_blocks=36) for seed in range(4)]
    for name in ("hidden", "uncached", "projected", "shared", "preempted"):
        assert sum(getattr(one, name) for one in met) > 5, name


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32))
def test_uncached_tokens_of_grouped_heads(grouped: Case, seed: int) -> None:
    check_forms(grouped, Choices((KV,)), seed, num_lane_blocks=seed % 2 * 20)


def test_families_are_those_whose_hidden_states_fit(case: Case, grouped: Case) -> None:
    assert case.model.config.hidden_size <= case.model.config.kv_size
    assert grouped.model.config.hidden_size > grouped.model.config.kv_size
    assert set(HIDDEN_FAMILIES + GROUPED_FAMILIES) <= set(FAMILIES)


@pytest.mark.parametrize("isa", ["generic", "avx2", "avx512"])
def test_on_two_threads_of_any_instruction_set(case: Case, isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_isa(isa):
        pytest.skip(f"no {isa} here")
    with KernelDevice(isa, num_threads=2).chosen(monkeypatch):
        assert check_forms(case, Choices(), 8, model=load(case.folder)).hidden > 0


@pytest.mark.gpu
def test_on_a_cuda_device(case: Case) -> None:
    model = load(case.folder, device="cuda")
    for seed in range(3):
        assert check_forms(case, Choices(), seed, model=model, device="cuda").hidden > 100
        assert check_forms(case, ONLY_UNCACHED, seed, num_lane_blocks=60, model=model, device="cuda").loaded > 100

"""How many units, how long a request: arithmetic with numbers that can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from schedcore.api.config import EngineConfig
from worker.base.errors import MemoryPlanError
from worker.batch.int8_cache import vector_size
from worker.models.model_config import ModelConfig, parse_model_config
from worker.runner.loaded_runner import cache_dtype
from worker.runner.memory import (
    MAX_AUTOMATIC_TOKENS,
    MemoryPlan,
    allocate_pool,
    free_cpu_bytes,
    free_cuda_bytes,
    plan_memory,
)

CPU = torch.device("cpu")
# 6 layers in groups of 4 and 2: 2 groups, 4 units per block of 16 tokens; a float32 unit is 4 x 16 x 32 x 4 = 8 KiB
UNIT_BYTES = 8192
BLOCK_BYTES = 4 * UNIT_BYTES


@pytest.fixture
def model() -> ModelConfig:
    return parse_model_config(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 100,
            "hidden_size": 64,
            "num_hidden_layers": 6,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "max_position_embeddings": 1024,
        }
    )


def plan(model: ModelConfig, free_bytes: int = 1 << 40, *, has_forms: bool = False, **settings: Any) -> MemoryPlan:
    return plan_memory(EngineConfig(model="m", **settings), model, torch.float32, free_bytes, has_forms=has_forms)


def test_a_given_size_is_divided_into_units(model: ModelConfig) -> None:
    made = plan(model, cache_memory_bytes=100 * BLOCK_BYTES + 5)
    assert (made.num_units, made.num_groups, made.units_per_block) == (400, 2, 4)
    assert (made.max_model_len, made.max_blocks_per_seq) == (1024, 64)


def test_int8_holds_almost_four_times_the_tokens_of_float32(model: ModelConfig) -> None:
    """A scale of two bytes for each head's 16."""
    settings = EngineConfig(model="m", cache_memory_bytes=100 * BLOCK_BYTES)
    made = plan_memory(settings, model, torch.int8, 0)
    size = vector_size(model.num_kv_heads, model.head_dim, torch.int8)
    assert made.num_units == 400 * 4 * model.kv_size // size
    pool = allocate_pool(made, settings, model, torch.int8, CPU)
    assert pool.data.shape == (made.num_units, 4, 16, size)
    assert pool.data.nbytes <= 100 * BLOCK_BYTES


def test_automatic_size_takes_what_is_free(model: ModelConfig) -> None:
    assert plan(model, free_bytes=1000 * UNIT_BYTES).num_units == 1000


def test_automatic_size_is_never_more_than_all_requests_could_use(model: ModelConfig) -> None:
    assert plan(model, max_num_seqs=3, max_model_len=100).num_units == 3 * 7 * 4


def test_automatic_size_is_no_more_than_tiny_models_need(model: ModelConfig) -> None:
    assert plan(model, max_num_seqs=4096, max_model_len=1024).num_units == MAX_AUTOMATIC_TOKENS // 16 * 4
    assert plan(model, max_num_seqs=4096, max_model_len=1024, cache_memory_bytes=1 << 33).num_units == 2**20


def test_the_workspace_of_cache_forms_is_part_of_the_cache(model: ModelConfig) -> None:
    """K and V of one layer of the longest request: 2 blocks of 16 tokens take one unit of four layers."""
    made = plan(model, cache_memory_bytes=1000 * UNIT_BYTES, max_model_len=1000, has_forms=True)
    assert (made.num_units, made.num_workspace_units, made.max_model_len) == (1000 - 32, 32, 1000)
    pool = allocate_pool(made, EngineConfig(model="m"), model, torch.float32, CPU)
    assert (len(pool.data), pool.num_workspace_units) == (1000, 32)


def test_the_workspace_of_short_requests_is_worth_a_product(model: ModelConfig) -> None:
    made = plan(model, cache_memory_bytes=10_000 * UNIT_BYTES, max_model_len=32, has_forms=True)
    assert made.num_workspace_units == 16  # 512 tokens
    made = plan(model, cache_memory_bytes=640 * UNIT_BYTES, max_model_len=32, has_forms=True)
    assert made.num_workspace_units == 10


@pytest.mark.parametrize("num_units", [5, 9, 14, 50, 100, 299])
def test_what_the_cache_holds_leaves_room_for_its_workspace(model: ModelConfig, num_units: int) -> None:
    made = plan(model, cache_memory_bytes=num_units * UNIT_BYTES, has_forms=True)
    assert made.num_units + made.num_workspace_units == num_units
    assert made.num_units >= made.max_blocks_per_seq * made.units_per_block
    assert made.num_workspace_units * 4 >= made.max_blocks_per_seq * 2
    assert made.max_blocks_per_seq >= min(64, (num_units - 1) * 8 // 9 // 4 - 1)


def test_context_shrinks_to_what_the_cache_holds_and_says_so(
    model: ModelConfig, caplog: pytest.LogCaptureFixture
) -> None:
    made = plan(model, cache_memory_bytes=10 * BLOCK_BYTES)
    assert (made.max_model_len, made.max_blocks_per_seq) == (160, 10)
    assert "reduced from 1024 to 160" in caplog.text


def test_a_context_that_was_asked_for_must_fit(model: ModelConfig) -> None:
    with pytest.raises(MemoryPlanError, match=rf"161 needs a cache of {11 * BLOCK_BYTES} bytes.*holds 160 tokens"):
        plan(model, cache_memory_bytes=10 * BLOCK_BYTES, max_model_len=161)
    assert plan(model, cache_memory_bytes=10 * BLOCK_BYTES, max_model_len=160).max_model_len == 160


def test_a_context_beyond_the_checkpoint_is_refused(model: ModelConfig) -> None:
    with pytest.raises(MemoryPlanError, match=r"1025 exceeds.*1024"):
        plan(model, max_model_len=1025)


def test_a_cache_without_a_single_block_is_refused(model: ModelConfig) -> None:
    with pytest.raises(MemoryPlanError, match=f"needs {BLOCK_BYTES} bytes"):
        plan(model, cache_memory_bytes=BLOCK_BYTES - 1)


def test_units_have_no_more_layers_than_the_model(model: ModelConfig) -> None:
    made = plan(model, layers_per_unit=100)
    assert (made.layers_per_unit, made.num_groups) == (6, 1)


def test_the_pool_starts_as_zeros_in_the_planned_shape(model: ModelConfig) -> None:
    config = EngineConfig(model="m", max_num_seqs=5)
    made = plan(model, cache_memory_bytes=10 * BLOCK_BYTES)
    pool = allocate_pool(made, config, model, torch.bfloat16, CPU)
    assert pool.data.shape == (40, 4, 16, 32)
    assert pool.data.dtype == torch.bfloat16
    assert pool.block_table.shape == (5, 2, 2, 10)
    assert not pool.data.any()
    assert not pool.block_table.any()
    pool.data[39, 3, 15] = 1.0
    assert pool.data.sum() == 32


def test_the_automatic_cpu_pool_is_modest() -> None:
    assert 0 <= free_cpu_bytes() <= 4 << 30


def test_lanes_for_copies_are_each_as_large_as_the_workspace(model: ModelConfig) -> None:
    settings = EngineConfig(model="m", cache_memory_bytes=1000 * UNIT_BYTES, max_model_len=512)
    made = plan_memory(settings, model, torch.float32, 1 << 40, has_forms=True, has_copies=True)
    assert (made.num_units, made.num_workspace_units, made.num_lane_units) == (936, 16, 48)
    pool = allocate_pool(made, settings, model, torch.float32, CPU)
    assert (len(pool.data), pool.num_lane_blocks) == (1000, 32)  # 16 units of 4 layers


def test_a_share_of_the_device_counts_what_is_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (600, 1000))
    device = torch.device("cuda")
    assert free_cuda_bytes(device) == 540
    assert free_cuda_bytes(device, 0.9) == 500
    assert free_cuda_bytes(device, 0.3) == 0


def test_a_cache_in_fewer_bits_than_the_weights_is_refused_on_cuda(model: ModelConfig) -> None:
    cuda = torch.device("cuda")
    for dtype in ("int8", "bfloat16"):
        config = EngineConfig(model="m", kv_cache_dtype=dtype)
        with pytest.raises(ValueError, match=f"kv_cache_dtype {dtype} .* runs on CPU only, not on cuda"):
            cache_dtype(config, model, torch.float32, cuda)
    assert cache_dtype(EngineConfig(model="m"), model, torch.float32, cuda) is torch.float32
    assert cache_dtype(EngineConfig(model="m", kv_cache_dtype="int8"), model, torch.float32, CPU) is torch.int8

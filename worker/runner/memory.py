"""How large the pool is and how long a request may get: arithmetic, and the two ways to measure what is free."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import psutil  # type: ignore[import-untyped]
import torch
from torch import Tensor

from schedcore.api.config import EngineConfig
from worker.base.errors import MemoryPlanError
from worker.batch.host_memory import map_huge_pages
from worker.batch.int8_cache import vector_size
from worker.batch.paged_pool import NUM_LANES, NUM_VECTOR_KINDS, PagedPool
from worker.forms.cache_forms import has_int8_rows
from worker.models.model_config import ModelConfig

logger = logging.getLogger(__name__)

MAX_CPU_POOL_BYTES = 4 << 30
MAX_AUTOMATIC_TOKENS = (
    1 << 18
)  # that the pool holds if its size is not given; tiny models could use more than they need
# The workspace of other cache forms holds the longest request; more where that is little: larger products are faster.
WORKSPACE_TOKENS, MIN_POOL_PER_WORKSPACE = 512, 64
CPU_SHARE, CUDA_SHARE = 0.25, 0.9  # of what is free
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    num_units: int
    max_model_len: int
    layers_per_unit: int
    num_groups: int
    max_blocks_per_seq: int
    num_workspace_units: int = 0  # beside num_units: for other cache forms than K and V, see step_forms.py
    num_lane_units: int = 0  # beside them: for copies of uncached tokens, see layer_copies.py

    @property
    def units_per_block(self) -> int:
        return self.num_groups * NUM_VECTOR_KINDS


def plan_memory(
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    free_bytes: int,
    *,
    has_forms: bool = False,
    has_copies: bool = False,
) -> MemoryPlan:
    """dtype: of the cache. free_bytes: what the pool may take if the configuration does not say.

    has_forms: other cache forms than K and V are possible, and the pool has their workspace in it.
    has_copies: the same of lanes for copies of uncached tokens, each as large as the workspace.
    Raises MemoryPlanError if the pool cannot hold one request of max_model_len, or of one block.
    """
    layers_per_unit = min(config.layers_per_unit, model.num_layers)
    num_groups = -(-model.num_layers // layers_per_unit)
    units_per_block = num_groups * NUM_VECTOR_KINDS
    vector_bytes = _vector_size(config, model, dtype) * dtype.itemsize
    unit_bytes = layers_per_unit * config.block_size * vector_bytes
    wanted_len = _wanted_model_len(config, model)
    wanted_blocks = -(-wanted_len // config.block_size)

    def workspace_units(num_blocks: int) -> int:
        """For a request of so many blocks."""
        return -(-NUM_VECTOR_KINDS * num_blocks // layers_per_unit) if has_forms else 0

    total = _num_units(config, free_bytes, unit_bytes, units_per_block, wanted_len, workspace_units(wanted_blocks))
    held_blocks = min(wanted_blocks, total // units_per_block)  # of one request that had the pool to itself
    while held_blocks > 0 and held_blocks * units_per_block + workspace_units(held_blocks) > total:
        held_blocks -= 1
    held_len = min(wanted_len, held_blocks * config.block_size)
    if held_len == 0:
        needed = (units_per_block + workspace_units(1)) * unit_bytes
        raise MemoryPlanError(f"the cache needs {needed} bytes for a single block; it has {total * unit_bytes}")
    if held_len < wanted_len and config.max_model_len is not None:
        needed = (wanted_blocks * units_per_block + workspace_units(wanted_blocks)) * unit_bytes
        raise MemoryPlanError(
            f"max_model_len {wanted_len} needs a cache of {needed} bytes; this one of {total * unit_bytes} holds "
            f"{held_len} tokens: raise cache_memory_bytes or lower max_model_len"
        )
    if held_len < wanted_len:
        logger.warning("max_model_len reduced from %d to %d, which is what the cache holds", wanted_len, held_len)
    spare = total - held_blocks * units_per_block
    wanted = min(workspace_units(-(-WORKSPACE_TOKENS // config.block_size)), total // MIN_POOL_PER_WORKSPACE)
    workspace = min(spare, max(wanted, workspace_units(held_blocks)))
    lanes = min(spare - workspace, NUM_LANES * workspace) if has_copies else 0
    return MemoryPlan(total - workspace - lanes, held_len, layers_per_unit, num_groups, held_blocks, workspace, lanes)


def _vector_size(config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> int:
    return vector_size(model.num_kv_heads, model.head_dim, dtype, has_int8_rows=has_int8_rows(config))


def _wanted_model_len(config: EngineConfig, model: ModelConfig) -> int:
    if config.max_model_len is not None and config.max_model_len > model.max_positions:
        raise MemoryPlanError(
            f"max_model_len {config.max_model_len} exceeds the checkpoint's {model.max_positions} positions"
        )
    return config.max_model_len or model.max_positions


def _num_units(
    config: EngineConfig, free_bytes: int, unit_bytes: int, units_per_block: int, max_len: int, num_workspace_units: int
) -> int:
    if config.cache_memory_bytes is not None:
        return min(config.cache_memory_bytes // unit_bytes, 2**31 - 1)  # unit ids are int32
    blocks_per_seq = -(-max_len // config.block_size)
    num_blocks = min(
        config.max_num_seqs * blocks_per_seq, max(MAX_AUTOMATIC_TOKENS // config.block_size, blocks_per_seq)
    )
    usable = num_blocks * units_per_block + num_workspace_units
    return min(free_bytes // unit_bytes, usable, 2**31 - 1)


def free_cpu_bytes() -> int:
    """A modest share of available memory."""
    return max(0, min(MAX_CPU_POOL_BYTES, int(CPU_SHARE * available_bytes())))


def available_bytes() -> int:
    """Of the machine's memory, within the limit of the container."""
    available: int = psutil.virtual_memory().available
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit != "max":
            available = min(available, int(limit) - int(used))
    except (OSError, ValueError):
        pass  # no cgroup v2: what the machine has
    return max(0, available)


def free_cuda_bytes(device: torch.device, utilization: float | None = None) -> int:
    """Call after a profile run: what activations need is then already reserved by torch.

    utilization: of the whole device, with all that it holds; None: most of what is free.
    """
    free, total = torch.cuda.mem_get_info(device)
    return int(CUDA_SHARE * free) if utilization is None else max(0, int(utilization * total) - (total - free))


def allocate_pool(
    plan: MemoryPlan,
    config: EngineConfig,
    model: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    has_padding_row: bool = False,
) -> PagedPool:
    """has_padding_row: for batches that are padded, see decode_inputs.py. Its unit comes after the scheduler's."""
    num_units = plan.num_units + has_padding_row + plan.num_workspace_units + plan.num_lane_units
    table = (config.max_num_seqs + has_padding_row, plan.num_groups, NUM_VECTOR_KINDS, plan.max_blocks_per_seq)
    size = _vector_size(config, model, dtype)
    pool = PagedPool(
        _zeros((num_units, plan.layers_per_unit, config.block_size, size), dtype, device),
        _zeros(table, torch.int32, device),
        model.num_kv_heads,
        model.head_dim,
        plan.num_workspace_units,
        plan.num_lane_units,
        has_padding_row,
        int8_rows=torch.zeros(table[0], dtype=torch.uint8) if has_int8_rows(config) else None,
    )
    if has_padding_row:
        pool.block_table[-1] = plan.num_units
    return pool


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On CPU the memory is mapped, not touched: it becomes resident as it is written, or by make_resident().

    In huge pages: units lie anywhere, and looking up a page of 4 KiB costs as much as reading half of it.
    """
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = torch.Size(shape).numel() * dtype.itemsize
    return torch.frombuffer(map_huge_pages(num_bytes), dtype=dtype).view(shape)

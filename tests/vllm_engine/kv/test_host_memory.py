"""Blocks of any layout as bytes, to the host and back."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from vllm_engine.kv.device_blocks import DeviceBlocks
from vllm_engine.kv.host_memory import HostMemory

NUM_BLOCKS = 6


def caches(device: str) -> dict[str, torch.Tensor]:
    """Blocks first; heads before tokens in memory; parts of blocks; and a layer that has another's cache."""
    made = {
        "plain": torch.randn(NUM_BLOCKS, 2, 4, 8),
        "permuted": torch.randn(NUM_BLOCKS, 4, 2, 8).transpose(1, 2),
        "parts": torch.randn(NUM_BLOCKS * 3, 5).to(torch.bfloat16),
        "interleaved": torch.randn(NUM_BLOCKS, 2, 16)[:, 1],
    }
    made = {name: cache.to(device) for name, cache in made.items()}
    return made | {"shared": made["plain"]}


def devices() -> list[Any]:
    return ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", devices())
def test_blocks_come_back_as_they_were_elsewhere(device: str) -> None:
    tensors = caches(device)
    blocks = DeviceBlocks(tensors, NUM_BLOCKS)
    assert len(blocks.views) == 4
    assert blocks.block_bytes == 64 * 4 + 64 * 4 + 15 * 2 + 16 * 4
    host = HostMemory(blocks, 4)
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    host.save([(1, 3), (4, 0)])
    for tensor in tensors.values():
        tensor.zero_()
    host.load([(3, 2), (0, 5)])
    for name, tensor in tensors.items():
        n = tensor.shape[0] // NUM_BLOCKS
        for to, source in ((2, 1), (5, 4)):
            assert torch.equal(tensor[to * n : (to + 1) * n], before[name][source * n : (source + 1) * n])
        assert not tensor[: 2 * n].any()
        assert not tensor[3 * n : 5 * n].any()


@pytest.mark.parametrize("device", devices())
def test_a_slot_that_is_saved_and_loaded_in_turn(device: str) -> None:
    """Each save is behind the load before it, and each load behind the save."""
    cache = torch.zeros(NUM_BLOCKS, 1 << 16, device=device)
    blocks = DeviceBlocks({"layer": cache}, NUM_BLOCKS)
    host = HostMemory(blocks, 1)
    for i in range(1, 20):
        cache[0] = i
        host.save([(0, 0)])
        cache[0] = -1
        host.load([(0, 1 + i % 5)])
        assert cache[1 + i % 5].eq(i).all()
    host.fence()()
    assert torch.frombuffer(bytearray(host.slot_bytes(0)), dtype=torch.float32).eq(19).all()
    assert host.measure_bytes_per_second() > 0


def test_a_cache_that_is_no_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="not 6 blocks"):
        DeviceBlocks({"layer": torch.zeros(2, NUM_BLOCKS + 1, 4)}, NUM_BLOCKS)
    with pytest.raises(ValueError, match="do not lie together"):
        DeviceBlocks({"layer": torch.zeros(4, NUM_BLOCKS).t()}, NUM_BLOCKS)

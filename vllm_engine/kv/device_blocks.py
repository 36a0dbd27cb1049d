"""vLLM's blocks as bytes: of each tensor of the cache a view [blocks, bytes of a block], whatever its layout is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


class DeviceBlocks:
    def __init__(self, kv_caches: Mapping[str, Tensor], num_blocks: int) -> None:
        """kv_caches: by layer, the blocks, or equal parts of them, first. Raises ValueError for another layout."""
        every = [_bytes_of(name, cache, num_blocks) for name, cache in kv_caches.items()]
        views = {(view.data_ptr(), view.stride(0)): view for view in every}
        self.views = list(views.values())  # layers that share memory count once
        self.device = self.views[0].device
        self.num_blocks = num_blocks
        self.block_bytes = sum(view.shape[1] for view in self.views)

    def read(self, blocks: Tensor, into: Tensor) -> None:
        """into: [len(blocks), block_bytes], on the same device."""
        begin = 0
        for view in self.views:
            into[:, begin : begin + view.shape[1]] = view.index_select(0, blocks)
            begin += view.shape[1]

    def write(self, blocks: Tensor, source: Tensor) -> None:
        """source: [len(blocks), block_bytes], on the same device."""
        begin = 0
        for view in self.views:
            view.index_copy_(0, blocks, source[:, begin : begin + view.shape[1]])
            begin += view.shape[1]

    def indices(self, blocks: Sequence[int]) -> Tensor:
        return torch.tensor(blocks, dtype=torch.int64).to(self.device, non_blocking=True)


def _bytes_of(name: str, cache: Tensor, num_blocks: int) -> Tensor:
    """[num_blocks, bytes]: each block's bytes lie together, the blocks at equal distances."""
    if cache.shape[0] % num_blocks != 0:
        raise ValueError(f"the cache of {name} is {tuple(cache.shape)}, which is not {num_blocks} blocks")
    per_block = cache.shape[0] // num_blocks
    width = cache.element_size()
    stride = cache.stride(0) * per_block * width
    num_bytes = per_block * cache[0].numel() * width
    if stride < num_bytes or not _is_dense(cache[0]) or (per_block > 1 and stride != num_bytes):
        raise ValueError(f"the blocks of {name} do not lie together: {tuple(cache.shape)}, strides {cache.stride()}")
    flat = torch.empty(0, dtype=torch.uint8, device=cache.device)
    flat.set_(cache.untyped_storage(), cache.storage_offset() * width, (num_blocks, num_bytes), (stride, 1))
    return flat


def _is_dense(block: Tensor) -> bool:
    """Its elements fill their memory, in whatever order."""
    size = 1
    for stride, length in sorted(zip(block.stride(), block.shape, strict=True)):
        if length == 1:
            continue
        if stride != size:
            return False
        size *= length
    return True

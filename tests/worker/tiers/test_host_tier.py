"""The speed of copies from the host is that of memory that is there."""

from __future__ import annotations

import psutil
import torch

from worker.batch.paged_pool import PagedPool
from worker.tiers.host_tier import MEASURED_BYTES, HostTier, measure_bytes_per_second

UNITS_PER_BLOCK, FLOATS = 2, 8192


def test_what_is_measured_is_read_from_memory_of_its_own() -> None:
    """Not from the page of zeros that stands for all that was never written, which is always in a cache."""
    num_units = 2 * MEASURED_BYTES // (4 * FLOATS)
    table = torch.zeros((1, 1, UNITS_PER_BLOCK, 1), dtype=torch.int32)
    pool = PagedPool(torch.zeros((num_units, 1, 1, FLOATS)).fill_(1), table, num_kv_heads=1, head_dim=FLOATS)
    host = HostTier(pool, UNITS_PER_BLOCK, num_units // UNITS_PER_BLOCK)
    before = psutil.Process().memory_info().rss
    assert measure_bytes_per_second(pool, host) > 0
    assert psutil.Process().memory_info().rss - before > MEASURED_BYTES // 2

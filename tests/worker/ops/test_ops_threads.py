"""Threads: our kernels' pool and torch's do not spin on the same cores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from worker import ops


@pytest.fixture(autouse=True)
def _threads_as_before() -> Iterator[None]:
    before = ops.num_threads(), torch.get_num_threads()
    yield
    ops.set_num_threads(before[0])
    torch.set_num_threads(before[1])


def test_torch_keeps_to_the_callers_thread_where_our_kernels_have_a_pool() -> None:
    ops.set_num_threads(3)
    assert ops.num_threads() == 3
    assert torch.get_num_threads() == (1 if ops.backend(torch.device("cpu")) != "torch" else 3)

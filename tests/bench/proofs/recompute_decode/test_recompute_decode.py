"""Attention of decodes and of other sequences at once: what paged_attention gives, whatever the split."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bench.proofs.recompute_decode import fused
from fakes.kernel_device import KernelDevice, emulated_module
from fakes.paged_batch import Sequence, make_paged_batch
from worker.ops import reference

TOLERANCE = {torch.bfloat16: 1.6e-2, torch.float16: 2e-3}
DEVICES = [KernelDevice("emulated"), pytest.param(KernelDevice("cuda"), marks=pytest.mark.gpu)]
ragged = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
DECODES = [Sequence(1, n) for n in (70, 1, 33)]
RECOMPUTED = [Sequence(33, 33), Sequence(2, 40), Sequence(17, 90), Sequence(1, 8)]


@pytest.fixture(params=DEVICES, ids=str)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KernelDevice]:
    with request.param.chosen(monkeypatch):
        if request.param.kernels == "emulated":
            monkeypatch.setattr(fused, "fused_kernel", lambda: emulated_module("_recompute_decode"))
        yield request.param


def assert_equals_twin(
    device: KernelDevice,
    decodes: list[Sequence],
    others: list[Sequence],
    num_heads: int,
    threads: int,
    sliding_window: int = 0,
    **shape: object,
) -> None:
    paged = make_paged_batch([*decodes, *others], device=device.torch_name, **shape)  # type: ignore[arg-type]
    dtype, head_dim = device.activation_dtype(paged.pool.data.dtype), paged.pool.head_dim
    q = torch.randn(paged.num_tokens, num_heads, head_dim, device=device.torch_name).to(dtype)
    out = fused.recompute_decode(
        q,
        paged.batch,
        paged.pool,
        0,
        0.2,
        sliding_window,
        num_decodes=len(decodes),
        recompute_threads=threads,
    )
    expected = reference.paged_attention(q, paged.batch, paged.pool, 0, 0.2, sliding_window)
    tolerance = TOLERANCE[device.attention_dtype(paged.pool.data.dtype)]
    torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("threads", [32, 64, 128, 224])
@pytest.mark.parametrize("pool_dtype", TOLERANCE)
@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(2, 2, 32), (8, 2, 64), (5, 1, 128)])
def test_equals_paged_attention(
    device: KernelDevice, pool_dtype: torch.dtype, num_heads: int, num_kv_heads: int, head_dim: int, threads: int
) -> None:
    shape = {"num_kv_heads": num_kv_heads, "head_dim": head_dim, "dtype": pool_dtype}
    assert_equals_twin(device, DECODES, RECOMPUTED, num_heads, threads, **shape)


@pytest.mark.parametrize("sliding_window", [0, 900])
def test_splits_the_keys_of_long_decodes(device: KernelDevice, sliding_window: int) -> None:
    assert_equals_twin(
        device,
        [Sequence(1, 1200)],
        [Sequence(20, 20)],
        2,
        128,
        sliding_window,
        num_kv_heads=1,
        head_dim=64,
        dtype=torch.bfloat16,
    )


@ragged
@given(
    decodes=st.lists(st.builds(Sequence, st.just(1), st.integers(1, 60)), max_size=4),
    others=st.lists(
        st.builds(lambda n, past: Sequence(n, n + past), st.integers(1, 30), st.integers(0, 20)), max_size=3
    ),
    group=st.integers(1, 9),
    threads=st.sampled_from([32, 96, 160, 224]),
    block_size=st.sampled_from([1, 16]),
)
def test_takes_any_batch(
    device: KernelDevice,
    decodes: list[Sequence],
    others: list[Sequence],
    group: int,
    threads: int,
    block_size: int,
) -> None:
    shape = {"num_kv_heads": 1, "head_dim": 16, "block_size": block_size, "dtype": torch.float16}
    if decodes or others:
        assert_equals_twin(device, decodes, others, group, threads, **shape)


def test_refuses_a_split_that_leaves_one_part_without_threads(device: KernelDevice) -> None:
    paged = make_paged_batch([*DECODES, *RECOMPUTED], dtype=torch.bfloat16, device=device.torch_name)
    q = torch.randn(paged.num_tokens, 2, 32, device=device.torch_name).bfloat16()
    for threads in (16, 256, 100):
        with pytest.raises(RuntimeError, match="no kernel for this shape"):
            fused.recompute_decode(q, paged.batch, paged.pool, 0, 0.2, num_decodes=3, recompute_threads=threads)

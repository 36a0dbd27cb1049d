"""Which token a row gets: against exact arithmetic, and the same in any company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fakes.kernel_device import KernelDevice
from schedcore._core import NO_TOKEN
from worker import ops
from worker.ops import reference
from worker.ops.draw import DrawParameters
from worker.ops.noise import uniforms

ragged = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

FILTERS = [
    {},
    {"top_k": 1},
    {"top_k": 5},
    {"top_k": 10_000},
    {"top_p": 0.5},
    {"top_p": 0.9},
    {"min_p": 0.2},
    {"top_k": 20, "top_p": 0.8, "min_p": 0.01},
]


def parameters(rows: list[dict[str, Any]], seed: int = 0) -> DrawParameters:
    def column(name: str, default: float, dtype: Any) -> Any:
        return np.array([row.get(name, default) for row in rows], dtype=dtype)

    return DrawParameters(
        temperature=column("temperature", 1.0, np.float32),
        top_k=column("top_k", 0, np.int64),
        top_p=column("top_p", 1.0, np.float32),
        min_p=column("min_p", 0.0, np.float32),
        seed=np.arange(seed, seed + len(rows), dtype=np.uint64) * np.uint64(0x1234567),
        index=np.arange(len(rows), dtype=np.int64) + seed,
    )


def draw(device: KernelDevice, logits: torch.Tensor, p: DrawParameters) -> np.ndarray:
    return ops.draw_tokens(logits.clone().to(device.torch_name), p)


def select(p: DrawParameters, rows: Any) -> DrawParameters:
    return DrawParameters(p.temperature[rows], p.top_k[rows], p.top_p[rows], p.min_p[rows], p.seed[rows], p.index[rows])


def exact_mass(logits: torch.Tensor, p: DrawParameters, row: int, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    """In float64, cumulated and one by one: probabilities of what the filters keep. rounding: of its least."""
    probs = (logits[row].double() / float(p.temperature[row])).softmax(-1).numpy()
    ranked = np.sort(probs)[::-1]
    num_kept = max(1, int((ranked >= float(p.min_p[row]) * ranked[0] * (1 - 1e-6)).sum()))
    if p.top_k[row] > 0:
        num_kept = min(num_kept, int(p.top_k[row]))
    if p.top_p[row] < 1:
        cumulated = ranked[:num_kept].cumsum()
        num_kept = min(num_kept, int((cumulated < float(p.top_p[row]) * cumulated[-1]).sum()) + 1)
    kept = np.where(probs >= ranked[num_kept - 1] * (1 - rounding), probs, 0)
    return kept.cumsum() / kept.sum(), kept


def check_row(logits: torch.Tensor, p: DrawParameters, row: int, token: int) -> None:
    """What is as probable as the least that is kept, within rounding, may be kept or not."""
    number = float(uniforms(p.seed[row : row + 1], p.index[row : row + 1])[0])

    def is_drawn(rounding: float) -> bool:
        cumulated, kept = exact_mass(logits, p, row, rounding)
        before = cumulated[token - 1] if token else 0.0
        return bool(kept[token] > 0 and before - 1e-5 <= number <= cumulated[token] + 1e-5)

    assert any(is_drawn(rounding) for rounding in (0.0, 1e-6, -1e-6))


@ragged
@given(
    num_rows=st.integers(1, 9),
    vocab_size=st.sampled_from([1, 3, 17, 255, 256, 257, 1000, 5000]),
    spread=st.sampled_from([0.1, 1.0, 3.0]),
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(FILTERS),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
)
def test_inverts_the_cumulated_probability_of_what_is_kept(
    device: KernelDevice,
    num_rows: int,
    vocab_size: int,
    spread: float,
    seed: int,
    kind: dict[str, Any],
    temperature: float,
) -> None:
    logits = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread
    p = parameters([{**kind, "temperature": temperature}] * num_rows, seed)
    for row, token in enumerate(draw(device, logits, p).tolist()):
        check_row(logits, p, row, token)


def test_tells_apart_what_is_nearly_as_probable(device: KernelDevice) -> None:
    logits = torch.randn(6, 5000, generator=torch.Generator().manual_seed(0)) * 0.1
    p = parameters([{"top_p": 0.9, "temperature": 1.7}] * 6)
    for row, token in enumerate(draw(device, logits, p).tolist()):
        check_row(logits, p, row, token)


def test_equals_its_twin_almost_always(device: KernelDevice) -> None:
    """Except where a cumulated probability falls on the random number within rounding."""
    logits = torch.randn(200, 700)
    p = parameters([FILTERS[i % len(FILTERS)] for i in range(200)], seed=5)
    columns = (p.temperature, p.top_k, p.top_p, p.min_p, p.seed, p.index)
    same = draw(device, logits, p) == reference.draw_tokens(logits.clone(), *columns)
    assert same.mean() > 0.99


@ragged
@given(num_rows=st.integers(0, 40), vocab_size=st.integers(1, 1200), seed=st.integers(0, 1000))
def test_greedy_is_the_first_of_the_largest(device: KernelDevice, num_rows: int, vocab_size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(-3, 4, (num_rows, vocab_size), generator=generator).float()  # many are equal
    first = [row.index(max(row)) for row in logits.tolist()]
    assert ops.argmax(logits.to(device.torch_name)).tolist() == first
    assert draw(device, logits, parameters([{"temperature": 0.0}] * num_rows)).tolist() == first


def test_company_does_not_matter(device: KernelDevice) -> None:
    logits = torch.randn(40, 3000)
    p = parameters([{**FILTERS[i % len(FILTERS)], "temperature": i % 5 * 0.4} for i in range(40)])
    together = draw(device, logits, p)
    for row in range(40):
        alone = draw(device, logits[row : row + 1], select(p, slice(row, row + 1)))
        assert alone[0] == together[row]


def test_ties_with_the_last_one_kept_are_kept(device: KernelDevice) -> None:
    logits = torch.tensor([[3.0, 1.0, 1.0, 1.0, -2.0]]).repeat(90, 1)
    tokens = draw(device, logits, parameters([{"top_k": 2}] * 90))
    assert set(tokens.tolist()) == {0, 1, 2, 3}


def test_tokens_of_probability_zero_are_never_drawn(device: KernelDevice) -> None:
    logits = torch.full((300, 40), -float("inf"))
    logits[:, 7] = logits[:, 31] = 0.0
    assert set(draw(device, logits, parameters([{}] * 300)).tolist()) == {7, 31}


def rows_without_a_token(vocab_size: int) -> torch.Tensor:
    """One by one: all NaN; one NaN, first, last or between; infinity; nothing but minus infinity."""
    nan, inf = float("nan"), float("inf")
    rows = [torch.randn(vocab_size) for _ in range(7)]
    rows[0][:] = nan
    rows[1][0] = rows[2][-1] = rows[3][vocab_size // 2] = nan
    rows[4][vocab_size // 3] = inf
    rows[5][:] = -inf
    rows[6][1], rows[6][-1] = nan, 100.0
    return torch.stack(rows)


@pytest.mark.parametrize("vocab_size", [3, 16, 255, 300, 1000, 4099])
@pytest.mark.parametrize("kind", [*FILTERS, {"temperature": 0.0}])
def test_rows_that_are_not_finite_give_no_token_and_their_neighbours_one(
    device: KernelDevice, kind: dict[str, Any], vocab_size: int
) -> None:
    broken = rows_without_a_token(vocab_size)
    sound = torch.randn(len(broken), vocab_size)
    sound[:, 1] = -float("inf")  # a forbidden token is none of that
    logits = torch.stack((sound, broken), 1).flatten(0, 1)
    tokens = draw(device, logits, parameters([kind] * len(logits)))
    assert tokens[1::2].tolist() == [NO_TOKEN] * len(broken)
    assert (tokens[::2] >= 0).all()
    if kind == {"temperature": 0.0}:
        assert ops.argmax(logits.to(device.torch_name)).tolist() == tokens.tolist()


@pytest.mark.parametrize("kind", [{}, {"top_k": 3}, {"min_p": 0.1}])
def test_a_top_p_that_rounds_to_nothing_keeps_the_likeliest(device: KernelDevice, kind: dict[str, Any]) -> None:
    logits = torch.randn(50, 700)
    for top_p in (1e-46, 1e-45, 1e-38):
        tokens = draw(device, logits, parameters([{**kind, "top_p": top_p}] * 50))
        assert tokens.tolist() == logits.argmax(-1).tolist()


def test_refuses_parameters_of_another_length(device: KernelDevice) -> None:
    with pytest.raises(ValueError, match="2 rows"):
        draw(device, torch.randn(2, 5), parameters([{}] * 3))


@ragged
@given(
    vocab_size=st.sampled_from([1, 3, 17, 33, 255, 256, 257, 1000, 5000]),
    num_bits=st.sampled_from([0, 1, 3, 100, 10_000, 10**6]),
    kind=st.sampled_from([{"temperature": 0.0}, *FILTERS]),
    seed=st.integers(0, 10_000),
)
def test_masks_beside_logits_are_masks_in_them(
    cpu_device: KernelDevice, vocab_size: int, num_bits: int, kind: dict[str, Any], seed: int
) -> None:
    """Bit for bit, with numbers that are not finite."""
    rng = np.random.default_rng(seed)
    num_rows, num_words = 5, -(-vocab_size // 32) + 1
    p = parameters([kind] * num_rows, seed)
    logits = torch.from_numpy(rng.normal(size=(num_rows, vocab_size), scale=3).astype(np.float32))
    for row, value in enumerate((np.nan, np.inf, -np.inf)):
        logits[row, int(rng.integers(vocab_size))] = value
    masks = [np.zeros(num_words, np.uint32) for _ in range(num_rows - 1)]
    for mask in masks:
        for token in rng.integers(0, 32 * num_words, min(num_bits, 4 * 32 * num_words)).tolist():
            mask[token // 32] |= np.uint32(1 << (token % 32))
    addresses = np.array([*(mask.ctypes.data for mask in masks), 0], np.uint64)  # the last row has none
    masked, before = logits.clone(), logits.clone()
    reference.allow_tokens(masked, np.arange(num_rows - 1, dtype=np.int32), masks)
    assert ops.draw_tokens(logits, p, addresses=addresses).tolist() == ops.draw_tokens(masked, p).tolist()
    assert logits.numpy().tobytes() == before.numpy().tobytes()

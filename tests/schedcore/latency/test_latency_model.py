"""The latency model's two forms against their formulas, and incremental features against features from scratch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedcore._core import algorithms

COEFFICIENTS = {
    "step_base": 0.002,
    "prefill_floor": 0.01,
    "prefill_pair": 2e-9,
    "prefill_token": 6e-5,
    "prefill_context": 2e-7,
    "prefill_chunk": 1e-4,
    "decode_base": 0.006,
    "decode_seq": 4e-5,
    "decode_context": 3e-7,
    "decode_max_context": 5e-7,
    "decode_far_context": 2e-7,
    "hidden_token": 1e-6,
    "overlap": 0.25,
    "near_context": 20_000.0,
    "near_evicted": 10.0,
}


@dataclass
class Batch:
    chunks: list[tuple[int, int]] = field(default_factory=list)  # context, tokens
    decodes: list[int] = field(default_factory=list)  # context
    hidden: int = 0

    def core(self, max_context: int = 8192) -> algorithms.LatencyBatch:
        batch = algorithms.LatencyBatch(max_context)
        for context, tokens in self.chunks:
            batch.add_chunk(context, tokens)
        for context in self.decodes:
            batch.add_decode(context)
        batch.add_hidden(self.hidden)
        return batch


def corrected(batch: Batch, k: dict[str, float]) -> float:
    if not batch.chunks and not batch.decodes and not batch.hidden:
        return 0.0
    prefill = decode = 0.0
    if batch.chunks:
        tokens = sum(k["prefill_pair"] * ((c + n) ** 2 - c**2) + k["prefill_token"] * n for c, n in batch.chunks)
        reads = sum(k["prefill_context"] * c + k["prefill_chunk"] for c, _ in batch.chunks)
        prefill = max(k["prefill_floor"], tokens + reads)
    if batch.decodes:
        decode = k["decode_base"] + k["decode_seq"] * len(batch.decodes)
        decode += k["decode_context"] * sum(batch.decodes) + k["decode_max_context"] * max(batch.decodes)
        near = max(0, k["near_context"] - k["near_evicted"] * sum(n for _, n in batch.chunks))
        decode += k["decode_far_context"] * max(0, sum(batch.decodes) - near)
    decode += k["hidden_token"] * batch.hidden
    return k["step_base"] + max(prefill, decode) + (1 - k["overlap"]) * min(prefill, decode)


def echo(batch: Batch, k: dict[str, float]) -> float:
    prefill = decode = 0.0
    if batch.chunks:
        prefill = max(
            k["prefill_floor"], sum(k["prefill_pair"] * n**2 + k["prefill_token"] * n for _, n in batch.chunks)
        )
    if batch.decodes:
        decode = k["decode_max_context"] * max(batch.decodes) + k["decode_context"] * float(np.mean(batch.decodes))
    if not batch.chunks or not batch.decodes:
        return prefill + decode
    return k["overlap"] * max(prefill, decode) + (1 - k["overlap"]) * min(prefill, decode)


def model(form: str, coefficients: dict[str, float] = COEFFICIENTS) -> algorithms.LatencyModel:
    return algorithms.LatencyModel(form, algorithms.LatencyCoefficients(**coefficients))


def echo_coefficients() -> dict[str, float]:
    prefill, decode = ("prefill_context", "prefill_chunk"), ("decode_base", "decode_seq", "decode_far_context")
    return COEFFICIENTS | dict.fromkeys(("step_base", *prefill, *decode, "hidden_token"), 0.0)


batches = st.builds(
    Batch,
    chunks=st.lists(st.tuples(st.integers(0, 4096), st.integers(1, 2048)), max_size=4),
    decodes=st.lists(st.integers(0, 8192), max_size=40),
    hidden=st.integers(0, 20_000),
)


@given(batches)
def test_corrected_form_is_its_formula(batch: Batch) -> None:
    assert model("corrected").predict(batch.core().features) == pytest.approx(corrected(batch, COEFFICIENTS))


@given(batches)
def test_echo_form_is_its_formula(batch: Batch) -> None:
    assert model("echo").predict(batch.core().features) == pytest.approx(echo(batch, echo_coefficients()))


@given(batches, st.sampled_from(["corrected", "echo"]))
def test_prediction_is_linear_in_the_regressors(batch: Batch, form: str) -> None:
    core, features = model(form), batch.core().features
    assert core.regressors(features) @ core.linear() == pytest.approx(core.predict(features))


@given(batches, batches)
def test_removing_what_was_added_leaves_what_was_there(kept: Batch, removed: Batch) -> None:
    both = Batch(kept.chunks + removed.chunks, kept.decodes + removed.decodes, kept.hidden + removed.hidden).core()
    for context, tokens in removed.chunks:
        both.remove_chunk(context, tokens)
    for context in removed.decodes:
        both.remove_decode(context)
    both.remove_hidden(removed.hidden)
    for name in (name for name in dir(both.features) if not name.startswith("_")):
        assert getattr(both.features, name) == getattr(kept.core().features, name)


def test_cleared_batch_is_empty() -> None:
    batch = Batch([(0, 16)], [100, 8192], 5).core()
    batch.clear()
    assert model("corrected").predict(batch.features) == 0.0
    batch.add_decode(7)
    assert batch.features.max_context == 7


def test_a_chunk_costs_attention_over_its_context() -> None:
    near, far = Batch([(0, 512)]).core().features, Batch([(4096, 512)]).core().features
    assert model("corrected").predict(far) > model("corrected").predict(near)
    assert model("echo").predict(far) == model("echo").predict(near)


def test_short_chunks_cost_their_contexts_and_their_number() -> None:
    one, far, two = (Batch(chunks).core().features for chunks in ([(0, 512)], [(2048, 512)], [(0, 256), (2048, 256)]))
    cheap = {"prefill_context": 2e-7, "prefill_chunk": 1e-4}
    seconds = [model("corrected", cheap).predict(features) for features in (one, far, two)]
    assert seconds == pytest.approx([1e-4, 1e-4 + 2048 * 2e-7, 2e-4 + 2048 * 2e-7])
    assert model("echo", cheap).predict(two) == 0.0


def test_contexts_beyond_the_near_ones_cost_more_per_token() -> None:
    coefficients = {"decode_context": 1e-7, "decode_far_context": 1e-7, "near_context": 5000.0}
    batches = (Batch(decodes=[1000] * n).core().features for n in (4, 5, 6, 7))
    seconds = [model("corrected", coefficients).predict(features) for features in batches]
    assert np.diff(seconds) == pytest.approx([1e-4, 2e-4, 2e-4])


def test_chunks_drive_near_contexts_out() -> None:
    coefficients = {"decode_far_context": 1e-7, "near_context": 5000.0, "near_evicted": 20.0, "overlap": 0.0}
    batches = (Batch([(0, n)], [1000] * 5).core().features for n in (1, 100, 250, 500))
    seconds = [model("corrected", coefficients).predict(features) for features in batches]
    assert seconds == pytest.approx([2e-6, 2e-4, 5e-4, 5e-4])


def test_more_decodes_cost_more_at_the_same_mean() -> None:
    few, many = Batch(decodes=[1000] * 2).core().features, Batch(decodes=[1000] * 64).core().features
    assert model("corrected").predict(many) > model("corrected").predict(few)
    assert model("echo").predict(many) == model("echo").predict(few)


def test_a_mixed_step_takes_longer_than_either_part() -> None:
    chunks, decodes = [(0, 2048)], [2000] * 100
    parts = [model("corrected").predict(b.core().features) for b in (Batch(chunks), Batch(decodes=decodes))]
    mixed = model("corrected").predict(Batch(chunks, decodes).core().features)
    assert max(parts) < mixed < sum(parts)


def test_unknown_form_and_context_are_refused() -> None:
    with pytest.raises(ValueError, match="corrected or echo"):
        model("linear")
    with pytest.raises(ValueError, match="max_context"):
        algorithms.LatencyBatch(100).add_decode(101)


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=60), st.randoms())
def test_max_tracker_equals_max_of_a_list(values: list[int], random: object) -> None:
    tracker, left = algorithms.MaxTracker(5000), []
    for value in values:
        tracker.add(value)
        left.append(value)
        if len(left) % 3 == 0:
            tracker.remove(left.pop(random.randrange(len(left))))  # type: ignore[attr-defined]
        assert tracker.max() == max(left, default=0)
    tracker.clear()
    assert tracker.max() == 0

"""What a simulated engine is made of: shapes, memory and the cost of a step."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from schedcore._core import simulation
from schedcore.latency.latency_profile import save_profile, shipped_profiles
from schedcore.simulation.cost_model import find_cost, linear_cost, scaled_coefficients
from schedcore.simulation.engine import SimulatedEngine
from schedcore.simulation.model_shape import MODEL_SHAPES, model_shape
from schedcore.simulation.simulator import request_columns
from schedcore.simulation.workloads.token_ids import Prompts
from schedcore.simulation.workloads.workload import make_workload

GIB = 2**30
FREE = linear_cost("free", 0.0, 0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("opt-13b", 12.85),
        ("opt-30b", 29.97),
        ("opt-66b", 65.72),
        ("llama-2-7b", 6.738),
        ("llama-2-13b", 13.016),
        ("llama-2-70b", 68.977),
        ("llama-3-8b", 8.030),
        ("qwen2.5-7b", 7.616),
        ("qwen3-0.6b", 0.596),
        ("qwen3-8b", 8.191),
    ],
)
def test_shapes_have_the_published_number_of_parameters(name: str, billions: float) -> None:
    assert model_shape(name).num_parameters / 1e9 == pytest.approx(billions, rel=0.002)


def test_cache_sizes_and_their_ratio() -> None:
    assert model_shape("opt-13b").kv_bytes_per_token == 819_200
    assert model_shape("llama-3-8b").kv_bytes_per_token == 131_072
    ratios = {name: model_shape(name).hidden_ratio for name in ("opt-13b", "qwen3-0.6b", "llama-3.1-8b", "qwen2.5-7b")}
    assert ratios == {"opt-13b": 0.5, "qwen3-0.6b": 0.5, "llama-3.1-8b": 2.0, "qwen2.5-7b": 3.5}


def test_the_pool_is_what_the_weights_leave_of_the_memory() -> None:
    engine = SimulatedEngine(model=model_shape("opt-13b"), cost=FREE, memory_bytes=40 * GIB)
    config = engine.scheduler_config(10)
    block_bytes = engine.model.unit_bytes(16, 4) * config.units_per_block
    assert block_bytes == 16 * engine.model.kv_bytes_per_token
    left = 0.9 * 40 * GIB - engine.model.weight_bytes
    assert engine.num_units // config.units_per_block == int(left // block_bytes)


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"llama-2-70b needs 128\.5 GiB"):
        SimulatedEngine(model=model_shape("llama-2-70b"), cost=FREE, memory_bytes=80 * GIB)


def test_a_policys_options_reach_the_scheduler() -> None:
    engine = SimulatedEngine(model=model_shape("opt-13b"), cost=FREE, memory_bytes=40 * GIB)
    assert engine.with_policy("priority", block_size=32).scheduler_config(1).max_blocks_per_seq == 2048 // 32
    with pytest.raises(ValueError, match="policy"):
        engine.with_policy("nonsense").scheduler_config(1)
    with pytest.raises(ValueError, match="no_such_field=1"):
        engine.with_policy("fcfs", no_such_field=1).scheduler_config(1)


def test_the_step_time_is_the_formula_on_the_plans_tokens() -> None:
    """One prompt of 100 tokens in chunks of 64 and 36, then four decodes; c4 counts half of the own chunk."""
    c0, c1, c2, c3, c4 = 8.9, 0.06, -0.018, 3.3e-4, 4.7e-6
    engine = SimulatedEngine(
        model=model_shape("opt-13b"), cost=linear_cost("fit", c0, c1, c2, c3, c4), memory_bytes=40 * GIB
    )
    loop = simulation.SimulationLoop(
        engine.with_policy("fcfs", max_num_batched_tokens=64).scheduler_config(1),
        engine.estimates(),
        request_columns(make_workload([0.0], Prompts.unrelated([100]), [5])),
        keep_token_times=True,
    )
    assert not loop.run(100)
    prefill = sum(c0 + c1 * n + c4 * n * (context + n / 2) for context, n in ((0, 64), (64, 36)))
    decodes = [c0 + c1 + c2 + c3 * (100 + i) for i in range(1, 5)]
    times_ms = 1000 * loop.token_times()[1]
    assert times_ms.tolist() == pytest.approx(prefill + np.cumsum([0.0, *decodes]), rel=1e-12)


def test_a_measured_shape_has_its_own_profile_and_another_says_what_it_was_scaled_from() -> None:
    assert find_cost(model_shape("llama-3-8b"), "A100").name == "meta-llama-3-8b_a100_tp1"
    assert find_cost(model_shape("llama-2-70b"), "h100", 4).name == "llama-2-70b-hf_h100_tp4"
    assert find_cost(model_shape("opt-13b"), "a100").name == "opt-13b scaled from llama-2-7b-hf_a100_tp1"
    assert find_cost(model_shape("qwen2.5-7b"), "a100").name == "qwen2.5-7b scaled from meta-llama-3-8b_a100_tp1"


def test_scaling_to_the_same_shape_changes_nothing_and_to_a_larger_one_no_term_but_overlap_stays() -> None:
    profile = shipped_profiles()["llama-2-7b-hf_a100_tp1"]
    small, large = model_shape("llama-2-7b"), model_shape("llama-2-13b")
    assert scaled_coefficients(profile.coefficients, small, small) == profile.coefficients
    before = msgspec.structs.asdict(profile.coefficients)
    after = msgspec.structs.asdict(scaled_coefficients(profile.coefficients, small, large))
    growth = {name: after[name] / value for name, value in before.items() if value}
    assert growth.pop("overlap") == 1.0
    # 40 layers of 5120 instead of 32 of 4096
    assert {round(growth[name], 4) for name in ("prefill_pair", "decode_context", "decode_max_context")} == {1.5625}
    weights = 40 * (4 * 5120**2 + 3 * 5120 * 13824) / (32 * (4 * 4096**2 + 3 * 4096 * 11008))
    assert (growth["prefill_token"], growth["step_base"]) == pytest.approx((weights, weights))
    assert growth["hidden_token"] == pytest.approx(40 * 5120**2 / (32 * 4096**2))


def test_scaling_one_measured_model_to_another_comes_close_to_its_measurement() -> None:
    """Decoding 32 sequences of 1000 tokens, Llama-3-8B from Llama-2-7B, other attention and all: within a fifth."""
    profiles = shipped_profiles()
    small, large = model_shape("llama-2-7b"), model_shape("llama-3-8b")
    scaled = scaled_coefficients(profiles["llama-2-7b-hf_a100_tp1"].coefficients, small, large)
    measured = profiles["meta-llama-3-8b_a100_tp1"].coefficients

    def decode_s(c: object) -> float:
        base, context = getattr(c, "step_base") + getattr(c, "decode_base"), getattr(c, "decode_context")  # noqa: B009
        return float(base + 32 * getattr(c, "decode_seq") + 32 * 1000 * context)  # noqa: B009

    assert decode_s(scaled) == pytest.approx(decode_s(measured), rel=0.2)


def test_a_profile_file_is_used_as_it_is(tmp_path: Path) -> None:
    profile = shipped_profiles()["llama-2-7b-hf_h100_tp1"]
    save_profile(profile, tmp_path / "mine.json")
    cost = find_cost(model_shape("qwen3-8b"), str(tmp_path / "mine.json"))
    assert cost.coefficients == profile.coefficients
    assert cost.name == "mine.json (meta-llama/Llama-2-7b-hf on H100)"
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(ValueError, match="no latency profile"):
        find_cost(model_shape("qwen3-8b"), str(tmp_path / "broken.json"))


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="opt-13b"):
        model_shape("gpt-9")
    with pytest.raises(ValueError, match="1 x A100"):
        find_cost(model_shape("opt-13b"), "tpu")
    assert set(MODEL_SHAPES) >= {"opt-13b", "llama-2-7b", "llama-2-13b", "llama-3-8b"}

"""What `make bench-gpu` runs, on tiny shapes and wherever the tests run."""

from __future__ import annotations

import pytest
import torch

from bench.lib.model.random_decoder import CONFIGS, num_layer_weights, num_streamed_weights
from bench.run.parts import gpu_steps, kernels
from worker import ops
from worker.calibration.step_shapes import Chunk, StepShape
from worker.models.model_config import parse_model_config


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_every_kernel_is_measured(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(["--device", device, "--smoke"])
    printed = capsys.readouterr().out
    names = (
        "rms_norm", "add_rms_norm", "silu_mul", "rope_kv_write", "paged_attention", "hidden_write", "hidden_gather",
        "project_rope_write", "unit_copy", "draw_tokens", "linear",
    )  # fmt: skip
    assert [name for name in names if f"| {name} " not in printed] == []


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_steps_are_measured_eagerly_and_recorded(device: str, capsys: pytest.CaptureFixture[str]) -> None:
    gpu_steps.main(["--device", device, "--smoke"])
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    recorded = ["decode 1 x 40", "decode 3 x 40", "prefill 24", "decode 2 x 40, prefill 24"]
    assert [row[0].strip() for row in rows] == [f"tiny {name}" for name in (*recorded[:3], "prefill 48", recorded[3])]
    assert all(float(row[1]) > 0 for row in rows)
    assert [row[0].strip() for row in rows if row[2].strip()] == [f"tiny {name}" for name in recorded]


def test_fewer_decodes_than_are_beside_a_prefill_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    gpu_steps.main(["--device", "cpu", "--smoke", "--decodes", "1"])
    names = [line.split("|")[1].strip() for line in capsys.readouterr().out.splitlines() if line.startswith("| tiny")]
    assert names == ["tiny decode 1 x 40", "tiny prefill 24", "tiny prefill 48", "tiny decode 2 x 40, prefill 24"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize("bench", [kernels, gpu_steps])
def test_without_a_device_that_is_said(bench: object) -> None:
    with pytest.raises(SystemExit, match="there is no CUDA device"):
        bench.main(["--device", "cuda"])  # type: ignore[attr-defined]


def test_models_have_the_sizes_of_their_names() -> None:
    sizes = {name: num_streamed_weights(parse_model_config(config)) for name, config in CONFIGS.items()}
    assert sizes["qwen3-0.6b"] == pytest.approx(0.596e9, rel=0.01)
    assert sizes["llama-3.1-8b"] == pytest.approx(8.03e9 - 128_256 * 4096, rel=0.01)
    assert num_layer_weights(parse_model_config(CONFIGS["llama-3.1-8b"])) == pytest.approx(6.98e9, rel=0.01)


def test_limits_of_steps() -> None:
    config = parse_model_config(CONFIGS["llama-3.1-8b"])
    limits = gpu_steps.Limits(bytes_per_second=3e12, operations_per_second=9e14)
    decode, prefill = StepShape(decodes=(1024,) * 64), StepShape(chunks=(Chunk(0, 2048),))
    cache = 64 * 1024 * 2 * 32 * 1024 * 2
    expected = (2 * num_streamed_weights(config) + cache) / 3e12
    assert gpu_steps.limit_seconds(decode, config, torch.bfloat16, limits) == pytest.approx(expected)
    products = 2 * 2048 * num_layer_weights(config) / 9e14
    assert products < gpu_steps.limit_seconds(prefill, config, torch.bfloat16, limits) < 1.1 * products


def test_the_device_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    kernels.main(["--device", "cpu", "--smoke", "--ops", "rms_norm"])
    assert capsys.readouterr().out.startswith(ops.backend(torch.device("cpu")))

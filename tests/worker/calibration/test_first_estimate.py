"""What is believed of steps before any was served, where decodes are recorded: here by a recorder that runs again."""

from __future__ import annotations

from pathlib import Path

import pytest

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.tiny_checkpoints import write_checkpoint
from schedcore.api.config import EngineConfig
from schedcore.latency.latency_profile import LatencyCoefficients
from worker.calibration.first_estimate import first_estimate
from worker.calibration.step_timer import StepTimer, TimedStep
from worker.forward.step_size import step_sizes
from worker.runner import loaded_runner
from worker.runner.loaded_runner import load_runner

PROMPTS = [[5, 6, 7, 8] * n for n in (1, 4, 9)]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded_runner, "graph_sizes", lambda config, device: step_sizes(16, 4))


def config_of(folder: Path, **settings: object) -> EngineConfig:
    fields = {"dtype": "float32", "device": "cpu", "num_threads": 1, "max_num_seqs": 4, "cache_memory_bytes": 8 << 20}
    return EngineConfig(model=str(folder), **{**fields, **settings})  # type: ignore[arg-type]


def estimate_of_steps(
    monkeypatch: pytest.MonkeyPatch, folder: Path, decode: float, short: float, long: float
) -> LatencyCoefficients:
    """Of a machine whose steps last so many seconds."""
    real, lasts = StepTimer.measure, iter((decode, short, long))

    def measure(self: StepTimer, shape: object, repeats: int) -> TimedStep:
        step = real(self, shape, 1)  # type: ignore[arg-type]
        return TimedStep(step.features, 0.0, [next(lasts)] * repeats)

    monkeypatch.setattr(StepTimer, "measure", measure)
    config = config_of(folder, max_num_batched_tokens=256, max_model_len=200)
    return first_estimate(load_runner(config), config)


@pytest.mark.usefixtures("recorded")
def test_what_launching_a_prompt_takes_is_not_its_tokens_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an H200: a recorded decode 1.9 ms, the shortest prompt 6.5 ms, and 199 tokens no more than that."""
    c = estimate_of_steps(monkeypatch, write_checkpoint(tmp_path), 0.0019, 0.0065, 0.0066)
    assert c.prefill_floor == pytest.approx(0.0046)
    assert c.prefill_token * 199 == pytest.approx(0.0047)
    assert c.step_base + c.decode_base == pytest.approx(0.0019)


@pytest.mark.usefixtures("recorded")
def test_prompts_that_are_no_longer_than_decodes_still_cost_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    c = estimate_of_steps(monkeypatch, write_checkpoint(tmp_path), 0.002, 0.0019, 0.0018)
    assert c.prefill_floor == 0
    assert c.prefill_token > 0


@pytest.mark.usefixtures("recorded")
def test_a_cache_that_is_too_small_to_measure_in_is_no_reason_to_fail(tmp_path: Path) -> None:
    config = config_of(write_checkpoint(tmp_path), max_model_len=2)
    assert first_estimate(load_runner(config), config).step_base > 0


def test_measuring_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_checkpoint(tmp_path)
    expected = output_tokens(run(make_engine(folder), greedy_requests(PROMPTS, 20)))
    monkeypatch.setattr(loaded_runner, "graph_sizes", lambda config, device: step_sizes(64, 16))
    engine = make_engine(folder)
    assert output_tokens(run(engine, greedy_requests(PROMPTS, 20))) == expected

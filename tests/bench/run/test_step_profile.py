from __future__ import annotations

from pathlib import Path

import pytest

from bench.run.parts.step_profile import NATIVE, STAGES, StepProfile, fastest, profile
from fakes.tiny_checkpoints import write_checkpoint


@pytest.mark.parametrize(("family", "is_native"), [("llama", True), ("opt", False)])
def test_every_stage_of_a_step_is_timed(tmp_path: Path, family: str, is_native: bool) -> None:
    folder = write_checkpoint(tmp_path, family)
    result = profile(folder, batch=3, prompt=20, num_steps=5, threads=1, bandwidth=1e9)
    assert tuple(result.stage_us) == STAGES
    timed = {stage for stage, us in result.stage_us.items() if us > 0}
    assert timed >= {"schedule", "inputs, sampling", "commit", "deliver", NATIVE[0]}
    assert (timed >= set(NATIVE)) is is_native
    assert result.limit_us > 0


def test_only_the_fastest_tenth_counts() -> None:
    steps = [dict.fromkeys(STAGES, 1e-6 * (1 + i % 20)) for i in range(40)]
    assert fastest(steps) == pytest.approx(dict.fromkeys(STAGES, 1.5))


def test_the_limit_is_held_against_the_whole_step() -> None:
    result = StepProfile("m", 1, dict.fromkeys(STAGES, 10.0), limit_us=60.0)
    assert result.step_us == 10.0 * len(STAGES)
    assert result.column()[-1] == f"{60 / result.step_us:.0%}"

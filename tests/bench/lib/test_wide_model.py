"""A wide model says what the small one says, and a noisy one something like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.lib.model.wide_model import WideShape, write_noisy_model, write_wide_model
from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.guessing_engines import DEMO_MODEL

PROMPTS = [[300 + 7 * i, 11, 400 + 13 * i, 29, 500 + i] for i in range(4)]


def answers(folder: Path) -> dict[int, list[int]]:
    return output_tokens(run(make_engine(folder), greedy_requests(PROMPTS, 40)))


@pytest.mark.parametrize("shape", [WideShape(192, 7, 500), WideShape(512, 5, 384)])
def test_it_says_the_same_at_the_cost_of_more(shape: WideShape, tmp_path: Path) -> None:
    write_wide_model(DEMO_MODEL, tmp_path, shape)
    assert answers(tmp_path) == answers(DEMO_MODEL)
    assert (tmp_path / "model.safetensors").stat().st_size > 1.3 * (DEMO_MODEL / "model.safetensors").stat().st_size


def test_noise_changes_some_answers(tmp_path: Path) -> None:
    write_noisy_model(DEMO_MODEL, tmp_path / "none", 0.0)
    write_noisy_model(DEMO_MODEL, tmp_path / "much", 0.5)
    assert answers(tmp_path / "none") == answers(DEMO_MODEL) != answers(tmp_path / "much")


def test_what_is_not_larger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is smaller than demo_model"):
        write_wide_model(DEMO_MODEL, tmp_path, WideShape(64, 9, 999))

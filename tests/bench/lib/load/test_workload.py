"""Prompts: distinct, repeatable, within the vocabulary and the context."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.lib.load.workload import Workload, fitted_workload


def test_prompts_are_distinct_repeatable_and_in_the_vocabulary() -> None:
    workload = Workload(prompt_len=128, output_len=8, vocab_size=500)
    prompts = [workload.prompt(i) for i in range(100)]
    assert prompts == [workload.prompt(i) for i in range(100)]
    assert len({tuple(prompt[:16]) for prompt in prompts}) == 100, "no two share a block"
    assert all(len(prompt) == 128 and min(prompt) >= 0 and max(prompt) < 500 for prompt in prompts)
    assert Workload(128, 8, 500, seed=1).prompt(0) != prompts[0]


def test_body_asks_for_exactly_the_output_length() -> None:
    body = json.loads(Workload(4, 8, 500).body(3, "some-model"))
    assert body["model"] == "some-model"
    assert body["prompt"] == Workload(4, 8, 500).prompt(3)
    assert (body["max_tokens"], body["ignore_eos"], body["temperature"]) == (8, True, 0)
    assert body["stream"]
    assert body["stream_options"] == {"include_usage": True}


@pytest.mark.parametrize(("context", "expected"), [(4096, (128, 64)), (192, (128, 64)), (96, (64, 32))])
def test_lengths_shrink_in_proportion_to_a_short_context(
    tmp_path: Path, context: int, expected: tuple[int, int]
) -> None:
    config = {"max_position_embeddings": context, "vocab_size": 300}
    (tmp_path / "config.json").write_text(json.dumps(config))
    workload = fitted_workload(tmp_path, 128, 64)
    assert (workload.prompt_len, workload.output_len, workload.vocab_size) == (*expected, 300)

"""Models that compute NaN or infinity: refused at the start, and failed request by request where only some do."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fakes.engine_driver import make_engine, run
from fakes.tiny_checkpoints import write_checkpoint
from schedcore.api.types import EngineRequest, ErrorCode, FinishReason, SamplingParams, TokenDelta
from worker.base.errors import CheckpointError
from worker.process.engine import Engine

POISON = 7  # a token whose embedding is NaN
PROMPT = [5, 6, 8, 9, 10]
POISONED = [5, 6, POISON, 9, 10]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "model")


def spoil(name: str, value: float) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        tensors[name].view(-1)[3] = value
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return change


def configure(**values: Any) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "model.layers.1.self_attn.k_proj.weight",
        "model.layers.2.mlp.down_proj.weight",
        "model.layers.0.input_layernorm.weight",
        "lm_head.weight",
    ],
)
def test_weights_that_are_not_finite_are_named_at_the_start(folder: Path, name: str, value: float) -> None:
    spoil(name, value)(folder)
    with pytest.raises(CheckpointError, match=rf"{name} holds numbers that are not finite.*float32") as caught:
        make_engine(folder)
    assert "\n" not in str(caught.value)


def test_weights_beyond_the_dtype_are_named_with_it(folder: Path) -> None:
    spoil("model.layers.1.mlp.up_proj.weight", 1e6)(folder)
    with pytest.raises(CheckpointError, match=r"up_proj\.weight .* in float16: .*bfloat16 or float32"):
        make_engine(folder, dtype="float16")


@pytest.mark.parametrize(
    "values",
    [
        {"rms_norm_eps": math.nan},
        {"rms_norm_eps": -1.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": math.nan}},
        {"rope_parameters": None, "rope_theta": 0},
    ],
)
def test_settings_that_make_nan_are_refused_by_name(folder: Path, values: dict[str, Any]) -> None:
    configure(**values)(folder)
    with pytest.raises(CheckpointError, match=r"config\.json: (rms_norm_eps|rope_theta) must be a number above 0"):
        make_engine(folder)


def test_a_model_that_overflows_is_refused_at_the_warm_up(folder: Path) -> None:
    """Weight by weight it is finite: what it computes is not."""
    spoil("model.norm.weight", 3e38)(folder)
    spoil("lm_head.weight", 3e38)(folder)
    with pytest.raises(CheckpointError, match=rf"{folder}: the model computes numbers that are not finite.*float32"):
        make_engine(folder)


def poisoned(folder: Path) -> Engine:
    engine = make_engine(folder, max_num_batched_tokens=64)
    engine._executor._model.embedding.tokens[POISON] = math.nan  # type: ignore[attr-defined]
    return engine


def check_failed(deltas: list[TokenDelta]) -> None:
    (last,) = deltas
    assert (last.finish_reason, last.token_ids, last.prompt_logprobs) == (FinishReason.ERROR, [], None)
    assert last.error is not None
    assert last.error.code == ErrorCode.NOT_FINITE


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingParams(temperature=0.0),
        SamplingParams(seed=1),
        SamplingParams(seed=1, top_k=5, top_p=0.5),
        SamplingParams(temperature=0.0, num_logprobs=2, frequency_penalty=0.5),
        SamplingParams(temperature=0.0, num_prompt_logprobs=1),
    ],
)
def test_one_request_fails_and_its_neighbours_answer_as_alone(folder: Path, sampling: SamplingParams) -> None:
    sound = [EngineRequest(i, PROMPT, 6, sampling) for i in (1, 3)]
    alone = run(make_engine(folder), sound)
    engine = poisoned(folder)
    deltas = run(engine, [sound[0], EngineRequest(2, POISONED, 6, sampling), sound[1]])
    check_failed(deltas[2])
    for i in (1, 3):
        assert [delta.token_ids for delta in deltas[i]] == [delta.token_ids for delta in alone[i]]
    assert engine.stats().num_finished[FinishReason.ERROR] == 1


def test_prompt_logprobs_in_an_earlier_chunk_fail_the_request(folder: Path) -> None:
    sampling = SamplingParams(temperature=0.0, num_prompt_logprobs=1)
    engine = make_engine(folder, max_num_batched_tokens=4)
    engine._executor._model.embedding.tokens[POISON] = math.nan  # type: ignore[attr-defined]
    deltas = run(
        engine, [EngineRequest(1, [POISON, *range(20, 40)], 3, sampling), EngineRequest(2, PROMPT, 3, sampling)]
    )
    check_failed(deltas[1])
    assert deltas[2][-1].finish_reason == FinishReason.LENGTH


def test_a_failed_prompt_is_not_in_the_prefix_cache(folder: Path) -> None:
    engine = poisoned(folder)
    prompt = [*POISONED, *range(20, 60)]
    check_failed(run(engine, [EngineRequest(1, prompt, 3, SamplingParams(temperature=0.0))])[1])
    engine._executor._model.embedding.tokens[POISON] = torch.ones(64)  # type: ignore[attr-defined]
    deltas = run(engine, [EngineRequest(2, prompt, 3, SamplingParams(temperature=0.0))])[2]
    assert deltas[0].num_cached_tokens == 0
    assert deltas[-1].finish_reason == FinishReason.LENGTH

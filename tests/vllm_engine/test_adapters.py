"""LoRA: tokens are those of a model with the adapter in its weights. Engines need vLLM: make test-vllm."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from fakes.lora_adapter import write_adapter
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, ErrorCode, FinishReason, SamplingParams
from vllm_engine.adapters import adapter_arguments

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
GATEWAY = b"test"


def test_vllm_is_told_to_make_room_for_all_of_them(tmp_path: Path) -> None:
    for name, rank in (("a", 4), ("b", 9)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank}))
    found = adapter_arguments({name: str(tmp_path / name) for name in "ab"})
    assert found == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 16}
    assert adapter_arguments({}) == {}


@pytest.mark.parametrize("content", [None, "{", "[]", '{"peft_type": "IA3"}', '{"peft_type": "LORA", "r": 1000}'])
def test_what_is_no_adapter_is_said_before_vllm_starts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "adapter_config.json").write_text(content)
    with pytest.raises(ValueError, match="adapter"):
        adapter_arguments({"a": str(tmp_path)})


@pytest.mark.parametrize("modules", [("a",), ("=p",), ("a=",), ("a=p", "a=q")])
def test_names_and_paths_are_written_so(modules: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="lora_modules"):
        EngineConfig(model="m", lora_modules=modules)


def tokens(engine: Any, adapter: str, prompts: list[list[int]]) -> list[list[int]]:
    for number, prompt in enumerate(prompts):
        engine.add(GATEWAY, EngineRequest(number, prompt, 12, SamplingParams(temperature=0.0), adapter=adapter))
    answers: list[list[int]] = [[] for _ in prompts]
    num_ended = 0
    while num_ended < len(prompts):
        engine.step()
        for delta in engine.take_deltas().get(GATEWAY, []):
            assert delta.error is None
            answers[delta.request_id] += delta.token_ids
            num_ended += delta.finish_reason is not FinishReason.NONE
    return answers


def test_an_adapter_answers_as_the_model_that_it_is_merged_into(tmp_path: Path) -> None:
    pytest.importorskip("vllm")
    import vllm_engine.engine_process as process

    write_adapter(MODEL, tmp_path / "adapter", tmp_path / "merged")
    prompts = [[20 + i, *range(30, 40 + i)] for i in range(6)]
    answers = {}
    for name, model, modules in (
        ("over", MODEL, (f"tiny={tmp_path / 'adapter'}",)),
        ("merged", tmp_path / "merged", ()),
    ):
        config = EngineConfig(
            model=str(model),
            dtype="float32",
            enforce_eager=True,
            max_num_seqs=8,
            max_num_batched_tokens=64,
            cache_memory_bytes=1 << 26,
            block_size=32,
            lora_modules=modules,
        )
        engine, _ = process.build_engine(config, time.monotonic())
        if modules:
            answers["base"] = tokens(engine, "", prompts)
            answers[name] = tokens(engine, "tiny", prompts)
            assert tokens(engine, "", prompts) == answers["base"], "its cache is its own"
            engine.add(GATEWAY, EngineRequest(9, [5], 1, adapter="other"))
            (refused,) = engine.take_deltas()[GATEWAY]
            assert refused.error.code is ErrorCode.INVALID
        else:
            answers[name] = tokens(engine, "", prompts)
        engine.close()
    assert answers["over"] == answers["merged"] != answers["base"]

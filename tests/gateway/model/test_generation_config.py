"""generation_config.json as found in the wild, and as broken by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.tokenize import Tokenizer
from schedcore.api.types import EngineRequest, SamplingParams
from schedcore.serving.request_check import find_problem


def read(folder: Path, **generation: Any) -> Checkpoint:
    (folder / "config.json").write_text("{}")
    (folder / "generation_config.json").write_text(json.dumps(generation))
    return Checkpoint.read(folder)


@pytest.mark.parametrize(
    ("generation", "eos_token_ids", "sampling"),
    [
        ({}, (), SamplingParams()),
        ({"eos_token_id": 2}, (2,), SamplingParams()),
        ({"eos_token_id": [128001, 128008, 128009]}, (128001, 128008, 128009), SamplingParams()),
        ({"eos_token_id": None}, (), SamplingParams()),
        ({"eos_token_id": []}, (), SamplingParams()),
        ({"eos_token_id": -1, "pad_token_id": -1}, (), SamplingParams()),
        ({"temperature": 1, "top_p": 1, "top_k": 0}, (), SamplingParams()),
        ({"temperature": 0, "top_k": -1}, (), SamplingParams(temperature=0.0, top_k=-1)),
        ({"temperature": None, "top_p": None, "top_k": 50.0}, (), SamplingParams(top_k=50)),
        ({"min_p": 0.05, "repetition_penalty": 1.05}, (), SamplingParams(min_p=0.05, repetition_penalty=1.05)),
        ({"do_sample": "yes", "max_length": "4096", "transformers_version": 4}, (), SamplingParams()),
    ],
)
def test_what_published_checkpoints_say_is_taken(
    tmp_path: Path, generation: dict[str, Any], eos_token_ids: tuple[int, ...], sampling: SamplingParams
) -> None:
    checkpoint = read(tmp_path, **generation)
    assert checkpoint.eos_token_ids == eos_token_ids
    assert checkpoint.sampling == sampling
    request = EngineRequest(1, [1], 1, checkpoint.sampling, stop_token_ids=list(checkpoint.eos_token_ids))
    assert find_problem(request, vocab_size=10) is None  # or every request would be refused


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("eos_token_id", value) for value in (["a"], "2", [[2]], {"id": 2}, 2.0, True, -2, 2**31, [1, None])),
        *(("temperature", value) for value in ("x", "0.7", -0.1, float("nan"), float("inf"), [1.0], True)),
        *(("top_p", value) for value in ("1", 0, 1.1, -1, float("nan"))),
        *(("top_k", value) for value in ("50", -2, 0.5, 2**31, float("nan"))),
        *(("min_p", value) for value in ("0", -0.1, 1.5)),
        *(("repetition_penalty", value) for value in ("1", 0, -1, 101, float("nan"))),
    ],
)
def test_what_would_fail_every_request_is_refused_at_the_start(tmp_path: Path, field: str, value: Any) -> None:
    with pytest.raises(CheckpointError, match=rf"generation_config\.json: {field} must be .*, not ") as caught:
        read(tmp_path, **{field: value})
    assert "\n" not in str(caught.value)


def test_end_of_sequence_in_config_json_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": ["a"]}')
    with pytest.raises(CheckpointError, match=r"config\.json: eos_token_id"):
        Checkpoint.read(tmp_path)


@pytest.mark.parametrize(
    "template", [5, True, {"default": "x"}, [1], [{"template": "x"}], [{"name": "default", "template": 5}], [["a"]]]
)
def test_chat_template_that_is_no_text_is_refused(tmp_path: Path, template: Any) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(CheckpointError, match=r"chat_template in .* must be a string"):
        read(tmp_path)


def test_chat_template_in_another_encoding_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes("müde".encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"chat_template\.jinja cannot be read"):
        read(tmp_path)


def test_special_token_without_content_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "special_tokens_map.json").write_text('{"bos_token": {"lstrip": true}, "eos_token": 5}')
    assert read(tmp_path).special_tokens == {}


@pytest.mark.parametrize("text", ["[" * 100_000, "[]", "null", "5", '"x"', "\xff", "{", '{"a": ' + "9" * 5000 + "}"])
def test_files_that_are_no_objects_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer_config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json (cannot be read|is not a JSON object)"):
        read(tmp_path)


def test_vocabulary_with_an_id_of_two_billion_is_loaded_at_once(tmp_path: Path) -> None:
    """The tokenizer as text would be walked over id by id."""
    read(tmp_path)
    model = {"type": "BPE", "vocab": {"a": 0, "b": 2**31}, "merges": []}
    decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0", "model": model, "decoder": decoder}))
    tokenizer = Tokenizer.load(Checkpoint.read(tmp_path))
    assert tokenizer.token_id("b") == 2**31

"""What is read of a checkpoint's small files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.model.checkpoint import Checkpoint, CheckpointError
from schedcore.api.types import SamplingParams


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write(tmp_path, config={"eos_token_id": 2})


def write(folder: Path, **files: Any) -> Path:
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def test_ends_of_sequence_come_from_the_generation_config_first(folder: Path) -> None:
    assert Checkpoint.read(folder).eos_token_ids == (2,)
    write(folder, generation_config={"eos_token_id": [7, 8]})
    assert Checkpoint.read(folder).eos_token_ids == (7, 8)


def test_sampling_defaults_come_from_the_generation_config(folder: Path) -> None:
    assert Checkpoint.read(folder).sampling == SamplingParams()
    write(folder, generation_config={"temperature": 0.6, "top_k": 20, "do_sample": True, "top_p": None})
    assert Checkpoint.read(folder).sampling == SamplingParams(temperature=0.6, top_k=20)


def test_special_tokens_may_be_objects(folder: Path) -> None:
    write(folder, tokenizer_config={"bos_token": {"content": "<s>", "lstrip": False}, "eos_token": "</s>"})
    assert Checkpoint.read(folder).special_tokens == {"bos_token": "<s>", "eos_token": "</s>"}


def test_chat_template_is_found_wherever_it_may_be(folder: Path, tmp_path: Path) -> None:
    assert Checkpoint.read(folder).chat_template is None
    write(folder, chat_template={"chat_template": "from its own json"})
    assert Checkpoint.read(folder).chat_template == "from its own json"
    write(folder, tokenizer_config={"chat_template": "from the configuration"})
    assert Checkpoint.read(folder).chat_template == "from the configuration"
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "the default"}]
    write(folder, tokenizer_config={"chat_template": several})
    assert Checkpoint.read(folder).chat_template == "the default"
    (folder / "chat_template.jinja").write_text("from jinja")
    assert Checkpoint.read(folder).chat_template == "from jinja"
    (tmp_path / "own.jinja").write_text("given")
    assert Checkpoint.read(folder, tmp_path / "own.jinja").chat_template == "given"


def test_what_is_missing_is_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(CheckpointError, match="no model directory"):
        Checkpoint.read(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        Checkpoint.read(tmp_path / "empty")
    with pytest.raises(CheckpointError, match="no chat template"):
        Checkpoint.read(folder, tmp_path / "nothing.jinja")
    (folder / "generation_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match="not a JSON object"):
        Checkpoint.read(folder)

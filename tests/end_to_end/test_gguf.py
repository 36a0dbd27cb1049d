"""`hocket serve model.gguf`: the demo model as a GGUF file answers what its directory answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest
import transformers
from tokenizers import Tokenizer

from fakes.gguf_files import vocabulary_of, write_gguf
from fakes.served import Server, serving
from schedcore.api.model_path import resolve_model

QUESTIONS = ["Hello!", "What is the capital of France?", "Count to five."]


def answers(server: Server) -> list[Any]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        return [
            client.chat.completions.create(
                model=client.models.list().data[0].id,
                messages=[{"role": "user", "content": question}],
                temperature=0,
                max_tokens=40,
            )
            .choices[0]
            .model_dump()
            for question in QUESTIONS
        ]


def test_a_gguf_file_answers_as_its_directory_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    demo = resolve_model("demo")
    tokenizer = json.loads((demo / "tokenizer_config.json").read_text())
    backend = Tokenizer.from_file(str(demo / "tokenizer.json"))
    settings = vocabulary_of(backend) | {
        "pre": "smollm",
        "add_bos_token": False,
        "bos_token_id": backend.token_to_id(tokenizer["bos_token"]),
        "eos_token_id": backend.token_to_id(tokenizer["eos_token"]),
        "tokenizer.chat_template": tokenizer["chat_template"],
    }
    model = transformers.AutoModelForCausalLM.from_pretrained(demo)
    file = write_gguf(tmp_path / "small-talk.gguf", model, "BF16", settings)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with serving(tmp_path / "a") as server:
        expected = answers(server)
    monkeypatch.setenv("HOCKET_TEST_MODEL", str(file))
    with serving(tmp_path / "b") as server:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            assert [model.id for model in client.models.list()] == ["small-talk"]
        assert answers(server) == expected

"""Families of models over vLLM, each through the gateway: tiny, with random weights, so that what is asked for by
grammar is what can be checked. HOCKET_TEST_VLLM_PYTHON names the Python that has vLLM (make test-vllm)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator

import openai
import pytest

from fakes import served, tiny_image_model
from fakes.served import ROOT, Server, serving

PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
FAMILIES = (
    *("llama", "qwen2", "qwen3", "qwen3-moe", "gemma3", "gpt-oss", "granite-moe-hybrid", "falcon-h1"),
    tiny_image_model.NAME,
)
OPTIONS = ("--engine", "vllm", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "128M")
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Rome", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
MESSAGES = [{"role": "user", "content": "How is the weather in Rome?"}]


@pytest.fixture(scope="module", params=FAMILIES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp(request.param)
    command = [PYTHON, "-m", "fakes.tiny_families", str(folder), request.param]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_TEST_MODEL", str(folder / request.param))
        patch.setattr(served, "START_SECONDS", 280.0)
        with serving(folder, *OPTIONS, "--vllm-python", PYTHON) as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_it_answers_streams_calls_a_tool_and_follows_a_schema(client: openai.OpenAI, server: Server) -> None:
    def ask(**parameters: object) -> openai.types.chat.ChatCompletion:
        made = client.chat.completions.create(model=server.model, messages=MESSAGES, temperature=0, **parameters)
        assert isinstance(made, openai.types.chat.ChatCompletion)
        return made

    whole = ask(max_tokens=20)
    stream = client.chat.completions.create(
        model=server.model, messages=MESSAGES, temperature=0, max_tokens=20, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content != ""
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    followed = ask(max_tokens=120, response_format=schema).choices[0]
    assert json.loads(followed.message.content or "")["city"] in ("Rome", "Oslo")
    tool = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
    (call, *_) = ask(max_tokens=160, tools=[tool], tool_choice="required").choices[0].message.tool_calls or []
    assert call.type == "function"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


def test_an_image_that_cannot_be_read_is_refused_by_name(client: openai.OpenAI, server: Server) -> None:
    """Whether the model takes images or not."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    with pytest.raises(openai.BadRequestError, match="image"):
        client.chat.completions.create(
            model=server.model, messages=[{"role": "user", "content": [image]}], max_tokens=2
        )

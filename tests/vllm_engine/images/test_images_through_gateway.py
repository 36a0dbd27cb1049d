"""Images by the openai package, through the gateway: the tokens are those of vLLM alone, given the same messages.

HOCKET_TEST_VLLM_PYTHON names the Python that has vLLM (make test-vllm).
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from fakes import served
from fakes.served import ROOT, Server, serving
from fakes.tiny_image_model import NAME, image_part

PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
OPTIONS = ("--engine", "vllm", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "64M")
OPTIONS += ("--max-num-batched-tokens", "64", "--max-num-seqs", "16", "--max-model-len", "1024", "--block-size", "32")
NUM_TOKENS = 16


def says(*parts: Any) -> list[dict[str, Any]]:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


CHATS = [
    says("What is this? ", image_part(1)),
    says("What is this? ", image_part(2)),
    says(image_part(3, width=90, height=33), "and ", image_part(1), " differ how?"),
    [
        {"role": "system", "content": "Be brief."},
        *says(image_part(4, width=24, height=24), "What is it?"),
        {"role": "assistant", "content": "A river."},
        {"role": "user", "content": "Are you sure?"},
    ],
    [{"role": "user", "content": "Hello."}],
]
STOCK = f"""
import json, os, sys
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
from vllm import LLM, SamplingParams
llm = LLM(sys.argv[1], dtype="float32", enforce_eager=True, kv_cache_memory_bytes=1 << 26, max_model_len=1024,
          limit_mm_per_prompt={{"image": 16}})
params = SamplingParams(temperature=0, max_tokens={NUM_TOKENS})
answers = llm.chat(json.load(sys.stdin), params)
print(json.dumps([[len(a.prompt_token_ids), list(a.outputs[0].token_ids)] for a in answers]))
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert PYTHON is not None
    folder = tmp_path_factory.mktemp("model")
    command = [PYTHON, "-m", "fakes.tiny_families", str(folder), NAME]
    subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")})
    return folder / NAME


@pytest.fixture(scope="module")
def stock(model: Path) -> list[tuple[int, list[int]]]:
    """Of each chat, how many tokens its prompt has, and the answer's."""
    assert PYTHON is not None
    made = subprocess.run(
        [PYTHON, "-c", STOCK, str(model)], input=json.dumps(CHATS), capture_output=True, text=True, check=True
    )
    return [(num, tokens) for num, tokens in json.loads(made.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    assert PYTHON is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOCKET_TEST_MODEL", str(model))
        patch.setattr(served, "START_SECONDS", 280.0)
        with serving(tmp_path_factory.mktemp("server"), *OPTIONS, "--vllm-python", PYTHON) as running:
            yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_tokens_are_those_of_vllm_alone(client: openai.OpenAI, server: Server, stock: Any) -> None:
    for messages, (num_prompt, tokens) in zip(CHATS, stock, strict=True):
        made = client.chat.completions.create(
            model=server.model,
            messages=messages,
            temperature=0,
            max_tokens=NUM_TOKENS,
            extra_body={"return_token_ids": True},
        )
        assert made.choices[0].to_dict()["token_ids"] == tokens
        assert made.usage is not None
        assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (num_prompt, len(tokens))
    assert stock[0] != stock[1]


def test_a_stream_tools_and_a_schema(client: openai.OpenAI, server: Server) -> None:
    def ask(**fields: Any) -> Any:
        return client.chat.completions.create(model=server.model, messages=CHATS[0], temperature=0, **fields)

    options = {"include_usage": True}
    chunks = list(ask(max_tokens=NUM_TOKENS, stream=True, stream_options=options))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = ask(max_tokens=NUM_TOKENS)
    assert text == whole.choices[0].message.content
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
    assert whole.usage.prompt_tokens_details.cached_tokens > 0
    many = ask(max_tokens=4, n=2).usage
    assert many.prompt_tokens == whole.usage.prompt_tokens
    city = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    city["additionalProperties"] = False
    schema = {"type": "json_schema", "json_schema": {"name": "city", "schema": city}}
    assert json.loads(ask(max_tokens=120, response_format=schema).choices[0].message.content)["city"]
    tool = {"type": "function", "function": {"name": "weather", "parameters": city}}
    (call, *_) = ask(max_tokens=160, tools=[tool], tool_choice="required").choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://169.254.169.254/latest/meta-data", "fetches nothing"),
        ("file:///etc/passwd", "fetches nothing"),
        ("data:text/plain;base64,AAAA", "fetches nothing"),
        ("data:image/png;base64,A*", "base64"),
        ("data:image/png;base64,AAAA", "none of PNG"),
    ],
)
def test_what_is_no_image_is_refused(client: openai.OpenAI, server: Server, url: str, word: str) -> None:
    part = {"type": "image_url", "image_url": {"url": url}}
    with pytest.raises(openai.BadRequestError, match=word):
        client.chat.completions.create(model=server.model, messages=says(part), max_tokens=2)  # type: ignore[arg-type]

"""The gateway in front of a real vLLM: HOCKET_TEST_VLLM_PYTHON names the Python that has it (make test-vllm)."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from fakes import served
from fakes.eventually import eventually
from fakes.lora_adapter import write_adapter
from fakes.served import Server, serving
from schedcore.record.replay import replay

MODEL = Path(__file__).resolve().parents[2] / "worker/demo_model"
PYTHON = os.environ.get("HOCKET_TEST_VLLM_PYTHON")
pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
OPTIONS = ("--engine", "vllm", "--dtype", "float32", "--enforce-eager", "--kv-cache-memory-bytes", "256M")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("record") / "decisions"


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lora")
    write_adapter(MODEL, folder / "adapter", folder / "merged")
    return folder / "adapter"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, record: Path, adapter: Path) -> Iterator[Server]:
    assert PYTHON is not None
    usual, served.START_SECONDS = served.START_SECONDS, 280.0  # vLLM takes half a minute alone
    try:
        with serving(
            tmp_path_factory.mktemp("server"),
            *OPTIONS,
            "--vllm-python",
            PYTHON,
            "--decision-record",
            str(record),
            "--lora-modules",
            f"tiny={adapter}",
        ) as running:
            yield running
    finally:
        served.START_SECONDS = usual


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_chat_and_its_stream_say_the_same(client: openai.OpenAI, server: Server) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    whole = client.chat.completions.create(model=server.model, messages=messages, temperature=0, max_tokens=20)
    stream = client.chat.completions.create(
        model=server.model, messages=messages, temperature=0, max_tokens=20, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 20 or whole.choices[0].finish_reason == "stop"


def test_an_adapter_is_a_model_to_whoever_asks(client: openai.OpenAI, server: Server, adapter: Path) -> None:
    def ask(model: str) -> str:
        made = client.completions.create(model=model, prompt="Once upon a time", max_tokens=12, temperature=0)
        assert made.model == model
        return made.choices[0].text

    base, over = ask(server.model), ask("tiny")
    assert base != over
    assert (ask(server.model), ask("tiny")) == (base, over)
    cards = {card.id: card.to_dict() for card in client.models.list()}
    assert cards["tiny"]["root"] == str(adapter)
    assert cards["tiny"]["parent"] == server.model
    assert cards[server.model].get("parent") is None
    with pytest.raises(openai.NotFoundError):
        ask("large")


def test_parameters_pass_through(client: openai.OpenAI, server: Server) -> None:
    def ask(**parameters: object) -> openai.types.Completion:
        made = client.completions.create(model=server.model, prompt="Once upon a time", max_tokens=12, **parameters)
        assert isinstance(made, openai.types.Completion)
        return made

    assert ask(seed=3).choices[0].text == ask(seed=3).choices[0].text
    assert len(ask(n=3).choices) == 3
    logprobs = ask(logprobs=2, temperature=0).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs
    assert all(p <= 0 for p in logprobs.token_logprobs)
    assert "e" not in ask(stop=["e"]).choices[0].text
    assert ask(extra_body={"min_tokens": 12}).choices[0].finish_reason == "length"


def test_grammars_are_followed(client: openai.OpenAI, server: Server) -> None:
    def ask(**extra: object) -> str:
        made = client.completions.create(model=server.model, prompt="Pick:", max_tokens=60, seed=1, extra_body=extra)
        assert made.choices[0].finish_reason == "stop", made.choices[0].text
        return made.choices[0].text

    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    schema["additionalProperties"] = False
    assert json.loads(ask(structured_outputs={"json": schema}))["a"] in ("x", "y")
    assert ask(structured_outputs={"choice": ["red", "blue"]}) in ("red", "blue")
    assert ask(structured_outputs={"regex": "[ab]{3}"}).strip("ab") == ""
    assert ask(structured_outputs={"grammar": 'root ::= "yes" | "no"'}) in ("yes", "no")
    assert ask(guided_grammar="start: /x{2}/") == "xx"
    bad = {"json": {"type": "object", "minProperties": "many"}}
    with pytest.raises(openai.BadRequestError, match="cannot be followed"):
        ask(structured_outputs=bad)


def test_a_tool_is_called_where_it_has_to_be(client: openai.OpenAI, server: Server) -> None:
    parameters = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
    parameters["additionalProperties"] = False
    made = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "How is the weather in Rome?"}],
        tools=[{"type": "function", "function": {"name": "weather", "parameters": parameters}}],
        tool_choice="required",
        max_tokens=120,
        temperature=0,
    )
    (call, *_) = made.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")


def test_what_the_engine_cannot_do_is_refused_by_name(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=server.model, input="Hello")
    assert refused.value.code == "unsupported"


def test_a_session_is_announced_and_its_draft_is_computed_ahead(client: openai.OpenAI, server: Server) -> None:
    def announce(session_id: str, **fields: object) -> dict[str, Any]:
        body = json.dumps({"session_id": session_id, **fields}).encode()
        asked = urllib.request.Request(f"{server.url}/v1/advisories", body, {"content-type": "application/json"})
        with urllib.request.urlopen(asked) as answered:
            found: dict[str, Any] = json.loads(answered.read())
            return found

    assert announce("nobody")["outcome"] == "missing"
    text = "The three of them went down to the river and did not come back before it was dark. " * 12
    client.completions.create(model=server.model, prompt=text, max_tokens=2, extra_body={"session_id": "talk"})
    state = announce("talk", prompt=text * 2)
    assert state["outcome"] == "accepted"
    assert state["action"] == "draft_prefill"
    assert state["tiers"]["device"]["tokens"] > 0
    made = client.completions.create(
        model=server.model, prompt=text * 2, max_tokens=2, extra_body={"session_id": "talk"}
    )
    assert made.usage is not None
    assert made.usage.prompt_tokens_details is not None
    assert (made.usage.prompt_tokens_details.cached_tokens or 0) > state["tiers"]["device"]["tokens"]


async def test_a_stream_that_is_left_frees_its_memory(client: openai.OpenAI, server: Server) -> None:
    stream = client.completions.create(
        model=server.model, prompt="Hello", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    await eventually(lambda: server.metric("hocket_requests_running") == 0, seconds=60)
    assert client.completions.create(model=server.model, prompt="Hello", max_tokens=2).choices


async def test_a_killed_vllm_leaves_a_record_that_replays_and_comes_back(
    client: openai.OpenAI, server: Server, record: Path
) -> None:
    """Its streams: test_streams_survive.py."""
    os.kill(server.engine.pid, signal.SIGKILL)
    replayed = replay(record)
    assert (replayed.difference, replayed.num_steps > 20) == (None, True)
    await eventually(lambda: server.health() == 200, seconds=280)
    assert client.completions.create(model=server.model, prompt="Hello", max_tokens=2).choices


def test_a_setting_that_vllm_has_no_place_for_is_its_last_word(tmp_path: Path) -> None:
    assert PYTHON is not None
    with (
        pytest.raises(AssertionError, match="the vLLM engine has no quantization"),
        serving(tmp_path, *OPTIONS, "--vllm-python", PYTHON, "--quantization", "int8"),
    ):
        pass

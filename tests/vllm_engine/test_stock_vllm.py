"""Our gateway in front of an unmodified `vllm serve`: make test-vllm, where HOCKET_TEST_VLLM_PYTHON is set."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.eventually import eventually
from fakes.served import Server, serving
from fakes.vllm_serve import MODEL, PYTHON, free_port, stop, vllm

pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    port = free_port()
    with vllm(tmp_path_factory.mktemp("vllm") / "log", port, "--scheduling-policy", "priority") as process:
        yield port, process


@pytest.fixture(scope="module")
def server(stock: tuple[int, subprocess.Popen[bytes]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("front"), "--engine", f"http://127.0.0.1:{stock[0]}") as running:
        yield running


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_answers_are_vllms_to_the_token(
    client: openai.OpenAI, server: Server, stock: tuple[int, subprocess.Popen[bytes]]
) -> None:
    def tokens(of: openai.OpenAI, model: str, **more: object) -> object:
        extra = {"return_token_ids": True}
        made = of.completions.create(model=model, prompt="Once upon a time", max_tokens=20, extra_body=extra, **more)
        assert isinstance(made, openai.types.Completion)
        return made.choices[0].model_dump()["token_ids"]

    with openai.OpenAI(base_url=f"http://127.0.0.1:{stock[0]}/v1", api_key="none", max_retries=0) as direct:
        for more in ({"temperature": 0}, {"temperature": 0, "logprobs": 3}, {"temperature": 0, "logit_bias": {"5": 2}}):
            assert tokens(client, server.model, **more) == tokens(direct, str(MODEL), **more)


def test_chat_streams_and_parameters_pass_through(client: openai.OpenAI, server: Server) -> None:
    messages = [{"role": "user", "content": "Tell me a story."}]
    whole = client.chat.completions.create(model=server.model, messages=messages, temperature=0, max_tokens=20)
    stream = client.chat.completions.create(
        model=server.model, messages=messages, temperature=0, max_tokens=20, stream=True
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content
    made = client.completions.create(
        model=server.model, prompt="Hello", max_tokens=6, n=2, logprobs=2, extra_body={"min_tokens": 6, "priority": -3}
    )
    assert len(made.choices) == 2
    logprobs = made.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.token_logprobs
    assert all(p is not None and p <= 0 for p in logprobs.token_logprobs)


def test_an_answer_in_json(client: openai.OpenAI, server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    made = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "x or y?"}],
        max_tokens=60,
        response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
    )
    content = made.choices[0].message.content or ""
    if made.choices[0].finish_reason == "stop":
        assert json.loads(content)["a"] in ("x", "y")
    else:
        assert content.lstrip().startswith("{")


def test_a_batch_beside_online_requests(client: openai.OpenAI, server: Server) -> None:
    rows = [row(f"r{i}", {"model": server.model, "prompt": f"{i} birds", "max_tokens": 8}) for i in range(40)]
    batch = submit(client, rows)
    for _ in range(5):
        assert client.completions.create(model=server.model, prompt="Hello", max_tokens=3).choices
    ended = wait_until_ended(client, batch)
    assert ended.status == "completed"
    assert len(results(client, ended.output_file_id)) == 40


async def test_a_stream_that_is_left_ends_there(
    client: openai.OpenAI, server: Server, stock: tuple[int, subprocess.Popen[bytes]]
) -> None:
    def num_running() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{stock[0]}/metrics") as response:
            lines = response.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{"))

    stream = client.completions.create(
        model=server.model, prompt="Hello", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    await eventually(lambda: num_running() == 0, seconds=30)
    assert server.metric("hocket_requests_running") == 0


async def test_a_killed_vllm_is_one_final_error_and_comes_back(
    client: openai.OpenAI, server: Server, stock: tuple[int, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    port, process = stock
    stream = client.completions.create(
        model=server.model, prompt="Hello", max_tokens=900, stream=True, extra_body={"ignore_eos": True}
    )
    chunks = iter(stream)
    next(chunks)
    stop(process, signal.SIGKILL)
    with pytest.raises(openai.APIError, match=r"after .* tokens of this answer"):
        for _ in chunks:
            pass
    await eventually(lambda: server.health() == 503, seconds=30)
    with pytest.raises(openai.InternalServerError, match="cannot be reached"):
        client.completions.create(model=server.model, prompt="Hello", max_tokens=2)
    with vllm(tmp_path / "log", port):  # without priorities this time
        await eventually(lambda: server.health() == 200, seconds=60)
        made = client.completions.create(model=server.model, prompt="Hello", max_tokens=2, extra_body={"priority": 5})
        assert made.choices

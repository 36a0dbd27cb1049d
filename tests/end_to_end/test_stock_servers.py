"""`hocket serve --engine http://...` in front of another `hocket serve`, as in front of any stock server."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.eventually import eventually
from fakes.served import Server, serving


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("upstream"), "--max-engine-restarts", "10") as running:
        yield running


@pytest.fixture(scope="module")
def server(upstream: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("front"), "--engine", upstream.url) as running:
        yield running


def client_of(server: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_answers_are_the_servers_to_the_token(server: Server, upstream: Server) -> None:
    def ask(of: Server, **more: object) -> dict[str, object]:
        with client_of(of) as client:
            made = client.completions.create(
                model=of.model, prompt="Once upon a time", max_tokens=20, extra_body={"return_token_ids": True}, **more
            )
        assert isinstance(made, openai.types.Completion)
        return made.choices[0].model_dump()

    for more in ({"temperature": 0}, {"seed": 5}, {"temperature": 0, "logprobs": 3}, {"seed": 1, "stop": ["e"]}):
        assert ask(server, **more) == ask(upstream, **more)


def test_an_answer_in_json(server: Server) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    with client_of(server) as client:
        made = client.chat.completions.create(
            model=server.model,
            messages=[{"role": "user", "content": "A number, please."}],
            max_tokens=100,
            response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        )
    if made.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(made.choices[0].message.content or "")["a"], int)
    else:
        assert (made.choices[0].message.content or "").lstrip().startswith("{")


def test_a_batch_goes_there(server: Server) -> None:
    rows = [row(f"r{i}", {"model": server.model, "prompt": f"{i} birds", "max_tokens": 5}) for i in range(30)]
    with client_of(server) as client:
        ended = wait_until_ended(client, submit(client, rows))
        assert ended.status == "completed"
        lines = results(client, ended.output_file_id)
    assert {line["custom_id"] for line in lines} == {f"r{i}" for i in range(30)}
    assert all(line["response"]["status_code"] == 200 for line in lines)


async def test_a_killed_engine_there_is_one_error_here_and_comes_back(server: Server, upstream: Server) -> None:
    with client_of(server) as client:
        stream = client.completions.create(
            model=server.model, prompt="Hello", max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
        )
        chunks = iter(stream)
        next(chunks)
        upstream.engine.kill()
        with pytest.raises(openai.APIError, match=r"after .* tokens of this answer"):
            for _ in chunks:
                pass
        await eventually(lambda: server.health() == 200 and server.metric("hocket_engine_restarts_total") == 1, 60)
        assert client.completions.create(model=server.model, prompt="Hello", max_tokens=2).choices

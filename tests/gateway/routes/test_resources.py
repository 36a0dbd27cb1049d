"""Models, tokenize, health, version, the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fakes.byte_tokenizer import END
from fakes.fake_engine import FakeEngine
from gateway.protocol.server.status import NodeStatus

ROOT = Path(__file__).resolve().parents[3]


async def test_models(serve: Any) -> None:
    client = await serve(FakeEngine(), served_model_names=("org/model", "alias"))
    body = await (await client.get("/v1/models")).json()
    assert [model["id"] for model in body["data"]] == ["org/model", "alias"]
    assert (body["object"], body["data"][0]["object"], body["data"][0]["max_model_len"]) == ("list", "model", 4096)
    one = await client.get("/v1/models/org/model")
    assert (await one.json())["id"] == "org/model"


async def test_unknown_model(serve: Any) -> None:
    response = await (await serve(FakeEngine())).get("/v1/models/nothing")
    assert response.status == 404
    assert (await response.json())["error"]["code"] == "model_not_found"


async def test_tokenize_and_back(serve: Any) -> None:
    client = await serve(FakeEngine())
    body = await (await client.post("/tokenize", json={"prompt": "hé"})).json()
    assert body == {"count": 3, "max_model_len": 4096, "tokens": [*"hé".encode()], "token_strs": None}
    back = await client.post("/detokenize", json={"tokens": [*body["tokens"], END]})
    assert await back.json() == {"prompt": "hé<|end|>"}


async def test_tokenize_messages_as_a_chat_would(serve: Any) -> None:
    client = await serve(FakeEngine())
    fields = {"messages": [{"role": "user", "content": "a"}], "return_token_strs": True}
    body = await (await client.post("/tokenize", json=fields)).json()
    assert body["tokens"] == [257, ord("a"), END, 258]
    assert body["token_strs"] == ["<|user|>", "a", "<|end|>", "<|assistant|>"]


async def test_health_tells_starting_ready_and_dead_apart(serve: Any) -> None:
    engine = FakeEngine(is_ready=False)
    client = await serve(engine)

    async def health() -> tuple[int, str]:
        response = await client.get("/health")
        return response.status, (await response.json())["status"]

    assert await health() == (503, "starting")
    engine.become_ready()
    assert await health() == (200, "ok")
    engine.die("The engine was killed by SIGKILL.")
    assert await health() == (503, "engine_dead")
    assert (await (await client.get("/health")).json())["reason"] == "The engine was killed by SIGKILL."


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("POST", "/v1/completions", {"prompt": "a"}),
        ("GET", "/v1/models", None),
        ("POST", "/tokenize", {"prompt": "a"}),
    ],
)
async def test_requests_before_the_engine_is_ready_are_told_to_come_back(
    serve: Any, method: str, path: str, body: Any
) -> None:
    client = await serve(FakeEngine(is_ready=False))
    response = await client.request(method, path, json=body)
    assert response.status == 503
    assert "Retry-After" in response.headers
    assert (await response.json())["error"]["code"] == "starting"


async def test_version_is_the_distributions(serve: Any) -> None:
    declared = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert declared is not None
    body = await (await (await serve(FakeEngine())).get("/version")).json()
    assert body == {"version": declared[1]}


async def test_page_is_self_contained(serve: Any) -> None:
    response = await (await serve(FakeEngine())).get("/")
    page = await response.text()
    assert response.headers["Content-Type"].startswith("text/html")
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    assert not re.search(r"""(?:src|href)=["'](?!data:)|@import|url\(""", page)
    assert 'lang="en"' in page


async def test_the_pages_table_of_nodes_can_be_read_aloud_and_names_what_the_server_says(serve: Any) -> None:
    page = await (await (await serve(FakeEngine())).get("/")).text()
    table = page[page.index("<table>") : page.index("</table>")]
    assert "<caption" in table
    assert table.count("<th ") == table.count('<th scope="col">') == 9
    assert 'role="region" aria-label="Nodes behind this server"' in page  # what scrolls has a name and takes keys
    assert set(re.findall(r"\bnode\.(\w+)", page)) <= set(NodeStatus.__struct_fields__)

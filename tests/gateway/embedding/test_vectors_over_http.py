"""Embeddings, scores and rankings over HTTP: shapes of OpenAI, Jina, Cohere and vLLM, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from fakes.byte_tokenizer import write_byte_checkpoint
from fakes.fake_engine import INFO, FakeEngine
from gateway.model.checkpoint import Checkpoint
from schedcore.api.types import GENERATION, POOLING, PoolingKind

EMBEDDINGS = "/v1/embeddings"
RERANKS, SCORES = ("/rerank", "/v1/rerank", "/v2/rerank"), ("/score", "/v1/score")


async def embed(client: Any, **fields: Any) -> Any:
    response = await client.post(EMBEDDINGS, json=fields)
    assert response.status == 200, await response.text()
    return await response.json()


async def refused(client: Any, path: str, **fields: Any) -> str:
    response = await client.post(path, json=fields)
    assert response.status == 400, await response.text()
    error = (await response.json())["error"]
    return f"{error['param']}: {error['message']}"


async def test_each_kind_of_input(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    a, b = [1.0] + [0.0] * 7, [0.0, 1.0] + [0.0] * 6
    for given, vectors in (
        ("a", [a]),
        (["a", "b"], [a, b]),
        ([97, 97], [a]),
        ([[97], [98, 98]], [a, b]),
    ):
        body = await embed(client, input=given, model="demo")
        assert [item["embedding"] for item in body["data"]] == vectors
        assert [item["index"] for item in body["data"]] == list(range(len(vectors)))
        num_tokens = sum(len(r.prompt_token_ids) for r in engine.requests[-len(vectors) :])
        assert body["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert {request.max_tokens for request in engine.requests} == {1}
    assert {request.pooling.kind for request in engine.requests if request.pooling} == {PoolingKind.LAST}


async def test_the_openai_package(serve: Any) -> None:
    client = await serve(FakeEngine())
    async with openai.AsyncOpenAI(base_url=str(client.make_url("/v1")), api_key="-") as sdk:
        for options in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
            found = await sdk.embeddings.create(model="demo", input=["ab", "cc"], **options)  # type: ignore[arg-type]
            assert found.data[1].index == 1
            if options.get("encoding_format") != "base64":
                assert found.data[0].embedding == pytest.approx([2**-0.5] * 2 + [0.0] * 6)
        assert found.usage.prompt_tokens == 4


async def test_length_and_dimensions(serve: Any, tmp_path: Path) -> None:
    folder = write_byte_checkpoint(tmp_path / "matryoshka")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"matryoshka_dimensions": [2, 4]}))
    client = await serve(FakeEngine(), checkpoint=Checkpoint.read(folder), pooler_config='{"pooling_type": "MEAN"}')
    assert (await embed(client, input="aab", normalize=False))["data"][0]["embedding"] == [2, 1, 0, 0, 0, 0, 0, 0]
    assert len((await embed(client, input="aab", dimensions=2))["data"][0]["embedding"]) == 2
    assert "dimensions: " in await refused(client, EMBEDDINGS, input="a", dimensions=3)
    assert "dimensions: " in await refused(await serve(FakeEngine()), EMBEDDINGS, input="a", dimensions=3)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "input: Missing"),
        ({"input": ""}, "input: "),
        ({"input": []}, "input: "),
        ({"input": ["a", ""]}, "input: "),
        ({"input": ["a", 3]}, "input[1]: "),
        ({"input": [3, "a"]}, "input[1]: "),
        ({"input": [10**6]}, "input: "),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format: "),
        ({"input": "a", "embed_dtype": "float16"}, "embed_dtype: "),
        ({"messages": [{"role": "user", "content": "a"}]}, "messages: "),
        ({"input": "a", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens: "),
        ({"input": "a" * INFO.max_model_len}, "input: "),
        ({"input": ["a"] * 2049}, "input: "),
    ],
)
async def test_what_is_refused(serve: Any, fields: dict[str, Any], word: str) -> None:
    assert (await refused(await serve(FakeEngine()), EMBEDDINGS, **fields)).startswith(word)


async def test_texts_that_are_cut(serve: Any) -> None:
    engine = FakeEngine()
    client = await serve(engine)
    for fields in ({"truncate_prompt_tokens": 3}, {"truncate_prompt_tokens": 3, "truncation_side": "left"}):
        await embed(client, input=["abcde", "x"], **fields)
    await embed(client, input="a" * INFO.max_model_len, truncate_prompt_tokens=-1)
    prompts = [bytes(request.prompt_token_ids) for request in engine.requests]
    assert prompts == [b"abc", b"x", b"cde", b"x", b"a" * (INFO.max_model_len - 1)]


@pytest.mark.parametrize("path", RERANKS)
async def test_rerank(serve: Any, path: str) -> None:
    client = await serve(FakeEngine())
    asked = {"model": "demo", "query": "ab", "documents": ["c", "abc", {"text": "ab"}]}
    body = await (await client.post(path, json=asked)).json()
    assert [(r["index"], r["document"]) for r in body["results"]] == [
        (2, {"text": "ab"}),
        (1, {"text": "abc"}),
        (0, {"text": "c"}),
    ]
    assert [r["relevance_score"] for r in body["results"]] == pytest.approx([1.0, (2 / 3) ** 0.5, 0.0], abs=1e-6)
    assert body["usage"]["total_tokens"] == 8
    body = await (await client.post(path, json=asked | {"top_n": 1, "return_documents": False})).json()
    assert [set(result) for result in body["results"]] == [{"index", "relevance_score"}]
    assert "documents" in await refused(client, path, query="a", documents=[])
    assert "query" in await refused(client, path, query="", documents=["a"])
    assert "max_tokens_per_doc" in await refused(client, path, query="a", documents=["a"], max_tokens_per_doc=5)


@pytest.mark.parametrize("path", SCORES)
async def test_score(serve: Any, path: str) -> None:
    client = await serve(FakeEngine())
    for asked, scores in (
        ({"text_1": "a", "text_2": "a"}, [1.0]),
        ({"text_1": "a", "text_2": ["a", "b", "ab"]}, [1.0, 0.0, 2**-0.5]),
        ({"queries": ["a", "b"], "documents": ["a", "a"]}, [1.0, 0.0]),
    ):
        body = await (await client.post(path, json=asked)).json()
        assert [item["score"] for item in body["data"]] == pytest.approx(scores, abs=1e-6)
    assert "text_1" in await refused(client, path, text_2="a")
    assert "text_1" in await refused(client, path, text_1=["a", "b"], text_2=["a"] * 3)
    assert "queries" in await refused(client, path, text_1="a", queries="a", text_2="a")


async def test_engines_and_models_that_cannot(serve: Any) -> None:
    engine = FakeEngine()
    engine.info_to_be = type(INFO)(**{n: getattr(INFO, n) for n in INFO.__struct_fields__} | {"missing": [POOLING]})
    client = await serve(engine)
    for path, fields in (
        (EMBEDDINGS, {"input": "a"}),
        ("/rerank", {"query": "a", "documents": ["a"]}),
        ("/score", {"text_1": "a", "text_2": "a"}),
    ):
        assert "engine" in await refused(client, path, **fields)
    engine = FakeEngine()
    engine.info_to_be = type(INFO)(**{n: getattr(INFO, n) for n in INFO.__struct_fields__} | {"missing": [GENERATION]})
    client = await serve(engine)
    await embed(client, input="a")
    assert "embeddings" in await refused(client, "/v1/completions", prompt="a")

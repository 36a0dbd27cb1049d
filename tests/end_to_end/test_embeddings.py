"""Embeddings of the demo model against the whole server: those of Transformers, online and as rows of a batch."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
import transformers

from fakes.served import Server
from schedcore.api.model_path import DEMO, resolve_model

KEY = "test-key"
WAIT_SECONDS = 120.0  # a deadline, not a measurement
TEXTS = ["Hello there.", "The fox ran over the hill and was not seen again.", "Seven plus five is twelve."]


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def expected(server: Server) -> list[Any]:
    """Of each text: the last token's state, of length 1."""
    model = transformers.AutoModel.from_pretrained(resolve_model(DEMO), dtype=torch.float32).eval()
    found = []
    for text in TEXTS:
        asked = {"prompt": text}
        ids = httpx.post(f"{server.url}/tokenize", json=asked, headers={"Authorization": f"Bearer {KEY}"}).json()
        with torch.inference_mode():
            state = model(torch.tensor([ids["tokens"]])).last_hidden_state[0, -1]
        found.append((state / state.norm()).numpy())
    return found


def check(embeddings: list[Any], expected: list[Any]) -> None:
    assert len(embeddings) == len(expected)
    for found, right in zip(embeddings, expected, strict=True):
        assert np.linalg.norm(found) == pytest.approx(1, abs=1e-5)
        assert float(np.dot(found, right)) > 0.999


def test_online(client: openai.OpenAI, server: Server, expected: list[Any]) -> None:
    answer = client.embeddings.create(model=server.model, input=TEXTS)
    check([item.embedding for item in answer.data], expected)
    again = client.embeddings.create(model=server.model, input=TEXTS, encoding_format="float")
    assert again.data[1].embedding == pytest.approx(answer.data[1].embedding, abs=1e-6)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 10


def test_rows_of_a_batch(client: openai.OpenAI, server: Server, expected: list[Any]) -> None:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/v1/embeddings", "body": {"model": server.model, "input": text}}
        for i, text in enumerate(TEXTS)
    ]
    file = client.files.create(file=("rows.jsonl", "\n".join(map(json.dumps, lines)).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/embeddings", completion_window="24h")
    deadline = time.monotonic() + WAIT_SECONDS
    while batch.status not in ("completed", "failed", "expired"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    rows = [json.loads(line) for line in client.files.content(batch.output_file_id or "").text.splitlines()]
    assert {row["response"]["status_code"] for row in rows} == {200}
    found = {row["custom_id"]: row["response"]["body"]["data"][0]["embedding"] for row in rows}
    check([found[str(i)] for i in range(len(TEXTS))], expected)


def test_rerank_and_score(server: Server, expected: list[Any]) -> None:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}) as http:
        ranked = http.post("/v1/rerank", json={"query": TEXTS[0], "documents": TEXTS}).json()
        scored = http.post("/score", json={"text_1": TEXTS[0], "text_2": TEXTS}).json()
    scores = [item["score"] for item in scored["data"]]
    assert scores == pytest.approx([float(np.dot(expected[0], other)) for other in expected], abs=5e-3)
    assert ranked["results"][0]["index"] == 0
    assert [r["relevance_score"] for r in ranked["results"]] == pytest.approx(sorted(scores, reverse=True), abs=1e-6)

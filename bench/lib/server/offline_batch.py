"""A batch as a benchmark needs it: rows over shared documents, uploaded as anybody would, and how far it has come."""

from __future__ import annotations

import io
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import orjson

from bench.lib.server.server_process import ServerProcess

BEGIN_SECONDS = 120.0  # for the server to validate the batch and to begin it
POLL_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class SharedDocuments:
    """Row i asks something of its own about one of the documents; rows come in random order. Lengths in tokens."""

    num_rows: int
    num_documents: int
    document_len: int
    question_len: int
    output_len: int
    vocab_size: int
    seed: int = 0

    def lines(self, model: str) -> Iterator[bytes]:
        draw = random.Random(self.seed)
        tokens = range(self.vocab_size)
        documents = [draw.choices(tokens, k=self.document_len) for _ in range(self.num_documents)]
        for i in range(self.num_rows):
            prompt = draw.choice(documents) + draw.choices(tokens, k=self.question_len)
            body = {
                "model": model,
                "prompt": prompt,
                "max_tokens": self.output_len,
                "temperature": 0,
                "ignore_eos": True,
            }
            yield orjson.dumps({"custom_id": f"row-{i}", "method": "POST", "url": "/v1/completions", "body": body})


def submit(server: ServerProcess, rows: SharedDocuments) -> str:
    """The id of a batch that has begun."""
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        model = client.models.list().data[0].id
        content = io.BytesIO(b"\n".join(rows.lines(model)))
        file = client.files.create(file=("rows.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/completions", completion_window="24h")
        deadline = time.monotonic() + BEGIN_SECONDS
        while client.batches.retrieve(batch.id).status == "validating":
            if time.monotonic() > deadline:
                raise TimeoutError(f"batch {batch.id} was not begun in {BEGIN_SECONDS:g} s")
            time.sleep(POLL_SECONDS)
        return batch.id


def cancel(server: ServerProcess, batch_id: str) -> None:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="none") as client:
        client.batches.cancel(batch_id)


@dataclass(frozen=True, slots=True)
class OfflineProgress:
    """Since the server started."""

    at: float  # seconds, monotonic
    num_rows: float
    num_prompt_tokens: float
    num_cached_tokens: float
    num_output_tokens: float


def read_progress(server: ServerProcess) -> OfflineProgress:
    text = server.metrics_text()

    def value(name: str, label: str) -> float:
        found = re.search(rf"^{name}_total{{{label}}} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else 0.0

    offline = 'class="offline"'
    return OfflineProgress(
        time.perf_counter(),
        value("hocket_offline_rows_ended", 'outcome="completed"'),
        value("hocket_prompt_tokens", offline),
        value("hocket_cached_tokens", offline),
        value("hocket_output_tokens", offline),
    )

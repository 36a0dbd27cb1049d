"""The unmodified `openai` package's files and batches against the whole server."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch

from fakes.served import Server

KEY, OTHER = "test-key", "another-key"
CHAT: Any = "/v1/chat/completions"
WAIT_SECONDS = 120.0  # a deadline, not a measurement


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def other(client: openai.OpenAI) -> openai.OpenAI:
    return client.with_options(api_key=OTHER)


def row(custom_id: str, server: Server, **body: Any) -> bytes:
    request = {"model": server.model, "messages": [{"role": "user", "content": custom_id}], "max_tokens": 5} | body
    line = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": request}
    return json.dumps(line).encode() + b"\n"


def until(client: openai.OpenAI, batch: Batch, condition: Callable[[Batch], bool]) -> Batch:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition(batch):
        assert time.monotonic() < deadline, batch
        time.sleep(0.05)
        batch = client.batches.retrieve(batch.id)
    return batch


def has_ended(batch: Batch) -> bool:
    return batch.status in ("completed", "failed", "expired", "cancelled")


def test_files(client: openai.OpenAI) -> None:
    content = bytes(range(256)) * 20_000
    file = client.files.create(file=("data.bin", content), purpose="user_data")
    assert (file.object, file.bytes, file.filename, file.purpose) == ("file", len(content), "data.bin", "user_data")
    assert file.expires_at is None
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).content == content
    assert client.files.wait_for_processing(file.id).status == "processed"
    deleted = client.files.delete(file.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (file.id, True, "file")
    with pytest.raises(openai.NotFoundError) as gone:
        client.files.retrieve(file.id)
    assert gone.value.param == "id"


def test_files_expire_and_are_listed_page_by_page(client: openai.OpenAI) -> None:
    policy: Any = {"anchor": "created_at", "seconds": 3600}
    made = [client.files.create(file=b"x", purpose="evals", expires_after=policy) for _ in range(5)]
    assert all(file.expires_at == file.created_at + 3600 for file in made)
    listed = list(client.files.list(purpose="evals", limit=2, order="asc"))
    assert [file.id for file in listed] == [file.id for file in made]
    for file in made:
        client.files.delete(file.id)
    assert list(client.files.list(purpose="evals")) == []


def test_batch_from_upload_to_output(client: openai.OpenAI, server: Server) -> None:
    lines = [row(f"hello {i}", server) for i in range(8)]
    lines.insert(3, b"broken\n")
    file = client.files.create(file=("rows.jsonl", b"".join(lines)), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint=CHAT, completion_window="24h", metadata={"job": "test"}
    )
    assert (batch.object, batch.status, batch.input_file_id) == ("batch", "validating", file.id)
    batch = until(client, batch, has_ended)
    assert batch.status == "completed"
    assert batch.metadata == {"job": "test"}
    assert batch.request_counts is not None
    assert batch.request_counts.to_dict() == {"total": 9, "completed": 8, "failed": 1}
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(error.line, error.code) for error in batch.errors.data] == [(4, "invalid_json_line")]
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    output = [json.loads(line) for line in client.files.content(batch.output_file_id).text.splitlines()]
    assert [line["custom_id"] for line in output] == [f"hello {i}" for i in range(8)]
    assert all(line["response"]["status_code"] == 200 and line["error"] is None for line in output)
    assert all(line["response"]["body"]["object"] == "chat.completion" for line in output)
    errors = client.files.content(batch.error_file_id).text.splitlines()
    assert [json.loads(line)["error"]["line"] for line in errors] == [4]
    assert batch.usage is not None
    assert batch.usage.output_tokens == sum(line["response"]["body"]["usage"]["completion_tokens"] for line in output)


def test_batches_are_listed_page_by_page_and_cancelled(other: openai.OpenAI, server: Server) -> None:
    file = other.files.create(file=b"".join(row(f"r{i}", server, max_tokens=60) for i in range(200)), purpose="batch")
    made = [other.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h") for _ in range(3)]
    assert [batch.id for batch in other.batches.list(limit=2)] == [batch.id for batch in reversed(made)]
    with pytest.raises(openai.ConflictError) as in_use:
        other.files.delete(file.id)
    assert in_use.value.code == "file_in_use"
    for batch in made:
        assert other.batches.cancel(batch.id).status in ("cancelling", "cancelled")
        assert until(other, batch, has_ended).status == "cancelled"
        with pytest.raises(openai.ConflictError):
            other.batches.cancel(batch.id)


def test_batch_without_a_good_line_fails(client: openai.OpenAI) -> None:
    file = client.files.create(file=b"nothing\n", purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
    batch = until(client, batch, has_ended)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert batch.errors.data[0].line == 1


def test_errors_are_the_packages_own(client: openai.OpenAI, other: openai.OpenAI, server: Server) -> None:
    file = client.files.create(file=row("r", server), purpose="batch")
    for call in (other.files.retrieve, other.files.content, other.files.delete, client.batches.retrieve):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    wrong: Any = "lunch"
    with pytest.raises(openai.BadRequestError) as purpose:
        client.files.create(file=b"x", purpose=wrong)
    assert purpose.value.param == "purpose"
    with pytest.raises(openai.BadRequestError) as window:
        client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window=wrong)
    assert window.value.param == "completion_window"
    with pytest.raises(openai.BadRequestError) as endpoint:
        client.batches.create(input_file_id=file.id, endpoint="/v1/images", completion_window="24h")
    assert endpoint.value.param == "endpoint"
    with pytest.raises(openai.NotFoundError):
        client.batches.create(input_file_id="file-none", endpoint=CHAT, completion_window="24h")
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").files.list()


def test_rows_of_responses(client: openai.OpenAI, server: Server) -> None:
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": {"input": "Hi", "max_output_tokens": 4}}
    file = client.files.create(file=("rows.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint="/v1/responses", completion_window="24h")
    batch = until(client, batch, has_ended)
    assert batch.output_file_id is not None, batch
    result = json.loads(client.files.content(batch.output_file_id).text)["response"]["body"]
    assert (result["object"], result["usage"]["output_tokens"] <= 4) == ("response", True)
    assert result["output"][0]["type"] == "message"

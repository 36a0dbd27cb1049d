"""What OpenAI's clients can say is honoured, refused, or listed in docs/api.md as ignored."""

from __future__ import annotations

import re
import typing
from pathlib import Path
from typing import Any

import pytest
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.responses import response_create_params

from gateway.protocol.chat import ChatRequest
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.responses import ResponsesBody
from gateway.protocol.vectors.embeddings import EmbeddingBody

DOCS = Path(__file__).resolve().parents[3] / "docs" / "api.md"


def ignored() -> set[str]:
    lists = re.findall(r"(?ms)^Ignored(?: there)?: (.*?)\.(?: |$|\n)", DOCS.read_text())
    return {name for text in lists for name in re.findall(r"`([a-z_]+)`", text)}


@pytest.mark.parametrize(
    ("params", "request_type"),
    [
        (chat_create_params.CompletionCreateParamsStreaming, ChatRequest),
        (completion_create_params.CompletionCreateParamsStreaming, CompletionRequest),
        (embedding_create_params.EmbeddingCreateParams, EmbeddingBody),
        (response_create_params.ResponseCreateParamsStreaming, ResponsesBody),
    ],
    ids=["chat", "completions", "embeddings", "responses"],
)
def test_no_field_of_openai_is_silently_ignored(params: Any, request_type: Any) -> None:
    sent = set(typing.get_type_hints(params))
    assert len(sent) > 4
    assert sent - set(request_type.__struct_fields__) - ignored() == set()


def test_what_is_listed_as_ignored_is() -> None:
    known = {*ChatRequest.__struct_fields__, *CompletionRequest.__struct_fields__, *ResponsesBody.__struct_fields__}
    assert ignored() & known <= {"metadata", "store", "parallel_tool_calls"}  # a response says them again
    assert ignored()

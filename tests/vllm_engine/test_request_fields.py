"""What vLLM's clients can say is honoured, refused, or listed in docs/api.md as ignored. Runs in vLLM's environment."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from gateway.protocol.chat import ChatRequest
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.messages import MessagesBody
from gateway.protocol.responses import ResponsesBody
from gateway.protocol.tokens import DetokenizeRequest, TokenizeChat, TokenizePrompt
from gateway.protocol.vectors.embeddings import EmbeddingBody
from gateway.protocol.vectors.ranking import RerankBody, ScoreBody

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm")

DOCS = Path(__file__).resolve().parents[2] / "docs" / "api.md"
OPENAI = "vllm.entrypoints.openai"
REQUESTS = {
    f"{OPENAI}.chat_completion.protocol:ChatCompletionRequest": ChatRequest,
    f"{OPENAI}.completion.protocol:CompletionRequest": CompletionRequest,
    f"{OPENAI}.responses.protocol:ResponsesRequest": ResponsesBody,
    "vllm.entrypoints.anthropic.protocol:AnthropicMessagesRequest": MessagesBody,
    "vllm.entrypoints.serve.tokenize.protocol:DetokenizeRequest": DetokenizeRequest,
    "vllm.entrypoints.serve.tokenize.protocol:TokenizeCompletionRequest": TokenizePrompt,
    "vllm.entrypoints.serve.tokenize.protocol:TokenizeChatRequest": TokenizeChat,
    "vllm.entrypoints.pooling.embed.protocol:EmbeddingCompletionRequest": EmbeddingBody,
    "vllm.entrypoints.pooling.scoring.protocol:RerankRequest": RerankBody,
    "vllm.entrypoints.pooling.scoring.protocol:ScoreTextRequest": ScoreBody,
}


def ignored() -> set[str]:
    lists = re.findall(r"(?ms)^Ignored(?: there)?: (.*?)\.(?: |$|\n)", DOCS.read_text())
    return {name for text in lists for name in re.findall(r"`([a-z_]+)`", text)}


@pytest.mark.parametrize("name", REQUESTS)
def test_no_field_of_vllm_is_silently_ignored(name: str) -> None:
    module, _, request = name.partition(":")
    sent = set(getattr(importlib.import_module(module), request).model_fields)
    assert len(sent) > 1
    assert sent - set(REQUESTS[name].__struct_fields__) - ignored() == set()

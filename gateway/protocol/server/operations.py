"""Every route of the server. A test holds this list to the routes that there are."""

from __future__ import annotations

from typing import Any

from gateway.protocol.advisories import AdvisoryRequest, SessionDeleted, SessionStatus, TypingWebhook
from gateway.protocol.batches import MAX_BATCHES, BatchList, BatchObject, BatchResults, CreateBatch
from gateway.protocol.chat import ChatRequest, ChatResponse
from gateway.protocol.completions import CompletionRequest, CompletionResponse
from gateway.protocol.files import MAX_FILES, PURPOSES, FileDeleted, FileList, FileObject
from gateway.protocol.messages import MessageObject, MessagesBody, TokenCount
from gateway.protocol.models import ModelCard, ModelList
from gateway.protocol.responses import DeletedResponse, InputItems, ResponseObject, ResponsesBody
from gateway.protocol.server.operation import BYTES, HTML, TEXT, Operation, Parameter
from gateway.protocol.server.status import CacheDropped, FleetStatus, HealthStatus, ServerLoad, ServerVersion
from gateway.protocol.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChat,
    TokenizePrompt,
    TokenizeResponse,
)
from gateway.protocol.vectors.embeddings import EmbeddingBody, EmbeddingResponse
from gateway.protocol.vectors.ranking import RerankBody, RerankResponse, ScoreBody, ScoreResponse

_BODY = (408, 413, 415)  # what may be wrong with the sending of a body
_ENGINE = (429, 500, 503, 504)  # what may become of work for the engine
_FILE_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "contentMediaType": BYTES},
        "purpose": {"enum": list(PURPOSES)},
        "expires_after[anchor]": {"const": "created_at"},
        "expires_after[seconds]": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
}
_AFTER = Parameter("after", {"type": "string"}, "the id that the last page ended with")
_SALT = Parameter("cache_salt", {"type": "string"}, "of the session's requests")


def _limit(most: int, default: int) -> Parameter:
    return Parameter("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}, "of one page")


GENERATION = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        tag="generation",
        summary="A chat",
        body=ChatRequest,
        answer=ChatResponse,
        streams=True,
        errors=(404, *_BODY, *_ENGINE),
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        tag="generation",
        summary="Text or token ids, gone on from",
        body=CompletionRequest,
        answer=CompletionResponse,
        streams=True,
        errors=(404, *_BODY, *_ENGINE),
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        tag="generation",
        summary="A chat in Anthropic's shapes",
        body=MessagesBody,
        answer=MessageObject,
        streams=True,
        errors=(404, *_BODY, *_ENGINE),
        is_anthropic=True,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        tag="generation",
        summary="The tokens of a chat in Anthropic's shapes",
        body=MessagesBody,
        answer=TokenCount,
        errors=(404, *_BODY, *_ENGINE),
        is_anthropic=True,
    ),
)

EMBEDDINGS = (
    Operation(
        method="POST",
        path="/v1/embeddings",
        tag="embeddings",
        summary="The vectors of texts",
        body=EmbeddingBody,
        answer=EmbeddingResponse,
        errors=(404, *_BODY, *_ENGINE),
    ),
    *(
        Operation(
            method="POST",
            path=path,
            tag="embeddings",
            summary="Documents, the nearest to a query first",
            body=RerankBody,
            answer=RerankResponse,
            is_alias=path == "/rerank",
            errors=(404, *_BODY, *_ENGINE),
        )
        for path in ("/v1/rerank", "/v2/rerank", "/rerank")
    ),
    *(
        Operation(
            method="POST",
            path=path,
            tag="embeddings",
            summary="How near texts are",
            body=ScoreBody,
            answer=ScoreResponse,
            is_alias=path == "/score",
            errors=(404, *_BODY, *_ENGINE),
        )
        for path in ("/v1/score", "/score")
    ),
)

RESPONSES = (
    Operation(
        method="POST",
        path="/v1/responses",
        tag="responses",
        summary="A chat in OpenAI's newer shapes",
        body=ResponsesBody,
        answer=ResponseObject,
        streams=True,
        errors=(404, *_BODY, *_ENGINE),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{id}",
        tag="responses",
        summary="A response that was kept",
        answer=ResponseObject,
        query=(Parameter("stream", {"type": "boolean"}, "must not be true"),),
        errors=(404,),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{id}",
        tag="responses",
        summary="Forgets a response",
        answer=DeletedResponse,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/responses/{id}/cancel",
        tag="responses",
        summary="Ends a response in the background",
        answer=ResponseObject,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/responses/{id}/input_items",
        tag="responses",
        summary="What a response was an answer to",
        answer=InputItems,
        errors=(404,),
    ),
)

OFFLINE = (
    Operation(
        method="POST",
        path="/v1/files",
        tag="offline work",
        summary="Uploads a file",
        form=_FILE_FORM,
        answer=FileObject,
        errors=(404, 408, 413, 415, 429, 507),
    ),
    Operation(
        method="GET",
        path="/v1/files",
        tag="offline work",
        summary="Files, the newest first",
        answer=FileList,
        query=(
            _limit(MAX_FILES, MAX_FILES),
            _AFTER,
            Parameter("order", {"enum": ["asc", "desc"], "default": "desc"}),
            Parameter("purpose", {"type": "string"}),
        ),
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/files/{file}",
        tag="offline work",
        summary="A file",
        answer=FileObject,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/files/{file}/content",
        tag="offline work",
        summary="A file's content, whole or a range of it",
        media=BYTES,
        errors=(404, 416),
    ),
    Operation(
        method="DELETE",
        path="/v1/files/{file}",
        tag="offline work",
        summary="Deletes a file",
        answer=FileDeleted,
        errors=(404, 409),
    ),
    Operation(
        method="POST",
        path="/v1/batches",
        tag="offline work",
        summary="Begins a batch",
        body=CreateBatch,
        answer=BatchObject,
        errors=(404, 409, *_BODY, 429, 507),
    ),
    Operation(
        method="GET",
        path="/v1/batches",
        tag="offline work",
        summary="Batches, the newest first",
        answer=BatchList,
        query=(_limit(MAX_BATCHES, 20), _AFTER),
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/v1/batches/{batch}",
        tag="offline work",
        summary="A batch",
        answer=BatchObject,
        errors=(404,),
    ),
    Operation(
        method="POST",
        path="/v1/batches/{batch}/cancel",
        tag="offline work",
        summary="Ends a batch",
        answer=BatchObject,
        errors=(404, 409),
    ),
    Operation(
        method="GET",
        path="/v1/batches/{batch}/results",
        tag="offline work",
        summary="A batch's results as they land",
        answer=BatchResults,
        query=(
            _limit(1000, 100),
            Parameter("after", {"type": "integer", "minimum": 0}, "the last page's cursor"),
        ),
        errors=(404,),
    ),
)

SESSIONS = (
    Operation(
        method="POST",
        path="/v1/advisories",
        tag="sessions",
        summary="A session will soon send a request",
        body=AdvisoryRequest,
        answer=SessionStatus,
        errors=(404, *_BODY, *_ENGINE),
    ),
    Operation(
        method="GET",
        path="/v1/sessions/{session_id}",
        tag="sessions",
        summary="Where a session's cache is",
        answer=SessionStatus,
        query=(_SALT,),
        errors=(404, *_ENGINE),
    ),
    Operation(
        method="DELETE",
        path="/v1/sessions/{session_id}",
        tag="sessions",
        summary="Forgets a session",
        answer=SessionDeleted,
        query=(_SALT,),
        errors=(404, *_ENGINE),
    ),
    Operation(
        method="POST",
        path="/v1/webhooks/typing",
        tag="sessions",
        summary="An advisory as a signed webhook",
        body=TypingWebhook,
        media="",
        status=204,
        errors=(401, 404, *_BODY, *_ENGINE),
        needs_key=False,
    ),
)

MODEL = (
    Operation(
        method="GET",
        path="/v1/models",
        tag="the model",
        summary="The served model under each of its names",
        answer=ModelList,
        errors=(503,),
    ),
    Operation(
        method="GET",
        path="/v1/models/{model}",
        tag="the model",
        summary="The served model",
        answer=ModelCard,
        errors=(404, 503),
    ),
    Operation(
        method="POST",
        path="/tokenize",
        tag="the model",
        summary="Text or a chat to token ids",
        body=TokenizePrompt | TokenizeChat,
        answer=TokenizeResponse,
        errors=(404, *_BODY, 429, 503),
    ),
    Operation(
        method="POST",
        path="/detokenize",
        tag="the model",
        summary="Token ids to text",
        body=DetokenizeRequest,
        answer=DetokenizeResponse,
        errors=(404, *_BODY, 429, 503),
    ),
    Operation(
        method="GET",
        path="/tokenizer_info",
        tag="the model",
        summary="The tokenizer's configuration, where the operator shows it",
        answer=dict[str, Any],
        errors=(404,),
    ),
)

SERVER = (
    Operation(
        method="GET",
        path="/health",
        tag="the server",
        summary="Whether a request sent now would be served",
        answer=HealthStatus,
        errors=(503,),
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/ping",
        tag="the server",
        summary="The same, by the status alone",
        media="",
        errors=(503,),
        needs_key=False,
    ),
    Operation(
        method="POST",
        path="/ping",
        tag="the server",
        summary="The same, by the status alone",
        media="",
        errors=(503,),
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/load",
        tag="the server",
        summary="Requests that are being served",
        answer=ServerLoad,
    ),
    Operation(
        method="GET",
        path="/fleet",
        tag="the server",
        summary="The nodes of a fleet, their load and their last death",
        answer=FleetStatus,
        errors=(404,),
    ),
    Operation(
        method="GET",
        path="/metrics",
        tag="the server",
        summary="For Prometheus",
        media=TEXT,
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/version",
        tag="the server",
        summary="The server's version",
        answer=ServerVersion,
    ),
    Operation(
        method="POST",
        path="/reset_prefix_cache",
        tag="the server",
        summary="Empties the prefix cache, where the operator lets clients",
        answer=CacheDropped,
        errors=(404, 503),
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        tag="the server",
        summary="This description",
        answer=dict[str, Any],
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/docs",
        tag="the server",
        summary="This description as a page",
        media=HTML,
        needs_key=False,
    ),
    Operation(
        method="GET",
        path="/",
        tag="the server",
        summary="A chat in the browser",
        media=HTML,
        needs_key=False,
    ),
)

OPERATIONS = (*GENERATION, *EMBEDDINGS, *RESPONSES, *OFFLINE, *SESSIONS, *MODEL, *SERVER)

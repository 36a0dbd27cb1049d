"""Bodies of every JSON route, and lines of a batch's file: a request, or an error that a client can be shown."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from fakes.byte_tokenizer import write_byte_checkpoint
from fuzz.cursor import Cursor
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint
from gateway.offline.checking.checking import Checker, CheckTask
from gateway.protocol.advisories import decode_advisory, decode_typing_webhook
from gateway.protocol.batches import decode_create_batch, window_seconds
from gateway.protocol.chat import ChatRequest, decode_chat
from gateway.protocol.completions import decode_completion
from gateway.protocol.endpoints import BY_PATH
from gateway.protocol.errors import ApiError
from gateway.protocol.generation import GenerationRequest, sampling_params
from gateway.protocol.tokens import decode_detokenize, decode_tokenize
from schedcore.api.types import EngineRequest, SamplingParams
from schedcore.api.wire import Submit, decode_to_engine, encode

MAX_BYTES = 4096
MAX_ERROR_BYTES = 16 * MAX_BYTES  # JSON spells a byte in six; a message says at most a part of the body back, twice

DECODERS: tuple[Callable[[bytes], Any], ...] = (
    decode_chat,
    decode_completion,
    decode_advisory,
    decode_typing_webhook,
    decode_create_batch,
    decode_tokenize,
    decode_detokenize,
)


def check(data: bytes) -> None:
    cursor = Cursor(data)
    which = cursor.below(len(DECODERS) + 2)
    if which >= len(DECODERS):
        _check_lines(("/v1/chat/completions", "/v1/completions")[which - len(DECODERS)], cursor.rest())
        return
    try:
        request = DECODERS[which](cursor.rest())
        _use(request)
    except ApiError as error:
        assert error.status < 500, error
        body = error.body()
        assert len(body) <= MAX_ERROR_BYTES
        assert json.loads(body)["error"]["message"]


def _use(request: Any) -> None:
    """As the routes go on with it."""
    if isinstance(request, GenerationRequest):
        sampling = sampling_params(request, SamplingParams(), choice=0, num_logprobs=None)
        submit = Submit(EngineRequest(1, [1], 1, sampling, stop_token_ids=request.stop_token_ids or []))
        assert decode_to_engine(encode(submit)) == submit
    if isinstance(request, ChatRequest):
        text = _template().render(request)
        assert isinstance(text, str)
    if isinstance(window := getattr(request, "completion_window", None), str):
        window_seconds(window)


def _check_lines(endpoint: str, content: bytes) -> None:
    task = CheckTask("", "batch_1", endpoint, ["demo"], max_rows=50, max_line_bytes=1000)
    checker = Checker(task)
    for row, error in checker.rows(io.BytesIO(content)):
        if error is None:
            body = content[row.body_offset : row.body_offset + row.body_length]
            assert BY_PATH[endpoint].decode(body).stream in (None, False)  # as it is read again when the row runs
        else:
            assert row.error_line is not None
            json.loads(row.error_line)


@cache
def _template() -> ChatTemplate:
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Checkpoint.read(write_byte_checkpoint(Path(folder)))
    assert checkpoint.chat_template is not None
    return ChatTemplate(checkpoint.chat_template, checkpoint.special_tokens)

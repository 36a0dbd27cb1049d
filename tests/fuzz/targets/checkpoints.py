"""The JSON files of a checkpoint, as the gateway and the engine read them: what can be served, or one line why not."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fakes.byte_tokenizer import write_byte_checkpoint
from fuzz.cursor import Cursor
from gateway.model.chat_template import ChatTemplate
from gateway.model.checkpoint import Checkpoint, CheckpointError
from gateway.model.tokenize import Tokenizer
from gateway.protocol.chat import decode_chat
from gateway.protocol.errors import InvalidRequestError
from schedcore.api.types import EngineRequest
from schedcore.serving.request_check import find_problem
from worker.base.errors import WorkerError
from worker.models.model_config import read_model_config
from worker.models.weight_names import expected_shapes

_FOLDER = Path(tempfile.mkdtemp(prefix="hocket-fuzz-"))
_CHAT = decode_chat(b'{"messages": [{"role": "user", "content": "a b"}]}')
MAX_LAYERS = 100  # of a configuration whose weights are named one by one


def check(data: bytes) -> None:
    cursor = Cursor(data)
    cursor.choice(_CHECKS)(cursor.rest())


def _start(name: str, content: bytes) -> None:
    shutil.rmtree(_FOLDER, ignore_errors=True)
    write_byte_checkpoint(_FOLDER)
    (_FOLDER / name).write_bytes(content)


def _check_config(content: bytes) -> None:
    _start("config.json", content)
    try:
        config = read_model_config(_FOLDER)
    except WorkerError as error:
        assert "\n" not in str(error)
        return
    assert min(config.vocab_size, config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) >= 1
    assert len(config.sliding_windows) == config.num_layers
    if config.num_layers <= MAX_LAYERS:
        assert all(size >= 1 for shape in expected_shapes(config).values() for size in shape)


def _check_generation_config(content: bytes) -> None:
    _start("generation_config.json", content)
    try:
        checkpoint = Checkpoint.read(_FOLDER)
    except CheckpointError as error:
        assert "\n" not in str(error)
        return
    request = EngineRequest(1, [1], 1, checkpoint.sampling, stop_token_ids=list(checkpoint.eos_token_ids))
    assert find_problem(request, vocab_size=2) is None


def _check_tokenizer_config(content: bytes) -> None:
    _start("tokenizer_config.json", content)
    try:
        checkpoint = Checkpoint.read(_FOLDER)
        Tokenizer.load(checkpoint).close()
        if checkpoint.chat_template:
            template = ChatTemplate(checkpoint.chat_template, checkpoint.special_tokens)
    except CheckpointError:
        return
    if checkpoint.chat_template and "for" not in checkpoint.chat_template:  # a loop may take as long as it likes
        try:
            assert isinstance(template.render(_CHAT), str)
        except InvalidRequestError as error:
            assert error.body()


def _check_tokenizer(content: bytes) -> None:
    """Changes at the top of a whole tokenizer.json: most other bytes are refused by the library at once."""
    _start("changes.json", b"")
    whole: dict[str, Any] = json.loads((_FOLDER / "tokenizer.json").read_text())
    try:
        changes = json.loads(content)
    except (ValueError, RecursionError):
        changes = {}
    (_FOLDER / "tokenizer.json").write_text(json.dumps(whole | changes if isinstance(changes, dict) else changes))
    try:
        tokenizer = Tokenizer.load(Checkpoint.read(_FOLDER))
    except CheckpointError:
        return
    try:
        ids = tokenizer._encode(["a b"], True)[0]
    except Exception:  # the library's own: a word that a vocabulary without an unknown token lacks
        return
    assert all(isinstance(token_id, int) for token_id in ids)
    tokenizer.decode(ids)
    tokenizer.close()


_CHECKS: list[Callable[[bytes], None]] = [
    _check_config,
    _check_generation_config,
    _check_tokenizer_config,
    _check_tokenizer,
]

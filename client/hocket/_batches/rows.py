"""What callers hand to `run`, made into rows of batches: a custom_id, an endpoint, a body. No I/O."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hocket._types import Message

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MAX_ROWS = 50_000  # of one batch: OpenAI's limits
MAX_BYTES = 200_000_000
MAX_ID_LENGTH = 512
# A prompt, the messages of a chat, the body of a request, or a whole row of a batch file
Request = str | Sequence[Message | Mapping[str, Any]] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    custom_id: str
    endpoint: str
    line: bytes  # with its newline


@dataclass(frozen=True, slots=True)
class RowMaker:
    """`params` fill in what a request's body does not say."""

    params: Mapping[str, Any]
    endpoint: str | None = None  # where requests without messages or prompt would go; None: each says so itself

    def row(self, request: Request, index: int) -> Row:
        """`index` counts from 0 and names requests that name themselves not. Raises ValueError."""
        given = request if isinstance(request, Mapping) and "body" in request else {"body": request}
        custom_id = given.get("custom_id", f"row-{index}")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_ID_LENGTH:
            raise ValueError(f"request {index}: custom_id must be a string of 1 to {MAX_ID_LENGTH} characters")
        body = self._body(given["body"], index)
        url = given.get("url") or self.endpoint or (COMPLETIONS if "prompt" in body else CHAT)
        row = {"custom_id": custom_id, "method": "POST", "url": url, "body": body}
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        except (TypeError, ValueError) as error:
            raise ValueError(f"request {index} cannot be written as JSON: {error}") from None
        return Row(custom_id, str(url), line)

    def _body(self, content: Any, index: int) -> dict[str, Any]:
        if isinstance(content, str):
            key = "prompt" if self.endpoint == COMPLETIONS else "messages"
            content = {key: content if key == "prompt" else [{"role": "user", "content": content}]}
        elif isinstance(content, Sequence) and not isinstance(content, bytes | bytearray):
            content = {"messages": content}
        if not isinstance(content, Mapping) or not ("messages" in content or "prompt" in content):
            raise ValueError(
                f"request {index} is none: give a prompt, a list of messages, a body with 'messages' or 'prompt', "
                "or a row with 'custom_id' and 'body'"
            )
        body = {**self.params, **content}
        if isinstance(body.get("messages"), Sequence):
            body["messages"] = [asdict(m) if isinstance(m, Message) else m for m in body["messages"]]
        return body


class Chunk:
    """The rows of one batch, as they go into its file."""

    def __init__(self, max_rows: int = MAX_ROWS, max_bytes: int = MAX_BYTES) -> None:
        self._max_rows = max_rows
        self._max_bytes = max_bytes
        self.num_bytes = 0
        self.index_of: dict[str, int] = {}  # custom_id -> place in what the caller gave

    def takes(self, row: Row) -> bool:
        """False if the batch is full."""
        has_room = len(self.index_of) < self._max_rows and self.num_bytes + len(row.line) <= self._max_bytes
        return not self.index_of or has_room

    def add(self, row: Row, index: int) -> None:
        """Raises ValueError if the batch has a row of that id."""
        if row.custom_id in self.index_of:
            earlier = self.index_of[row.custom_id]
            raise ValueError(f"request {index}: custom_id {row.custom_id!r} is that of request {earlier}, too")
        if len(row.line) > self._max_bytes:
            raise ValueError(f"request {index} is larger than {self._max_bytes} bytes")
        self.num_bytes += len(row.line)
        self.index_of[row.custom_id] = index

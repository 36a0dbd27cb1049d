"""An input file, line by line: which lines are requests, and what is wrong with the others.

A line is judged as a request to its endpoint would be (gateway/protocol/). What needs the model (the prompt's length,
the chat template) shows when the row runs. Memory does not grow with the file, but for the custom ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
from msgspec import UNSET, UnsetType

from gateway.offline.store.lines import RowError, error_line
from gateway.offline.store.records import CheckedRow
from gateway.protocol.endpoints import BY_PATH
from gateway.protocol.errors import InvalidRequestError, shortened

MAX_CUSTOM_ID = 512  # characters
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class CheckTask(msgspec.Struct, frozen=True):
    path: str
    batch_id: str
    endpoint: str
    models: list[str]  # that rows may name
    max_rows: int
    max_line_bytes: int


class LineError(msgspec.Struct, frozen=True):
    """What `batch.errors.data` shows; `line` counts from 1."""

    code: str
    message: str
    param: str | None
    line: int | None


class _Envelope(msgspec.Struct, frozen=True):
    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw | UnsetType = UNSET


class _BadLineError(Exception):
    def __init__(self, code: str, message: str, param: str | None = None) -> None:
        self.message = shortened(message)
        super().__init__(self.message)
        self.code = code
        self.param = param


class Checker:
    """Iterate over `rows()`; then `fatal` says why none of them may run, and `model` what the first good one wants."""

    def __init__(self, task: CheckTask) -> None:
        self.fatal: LineError | None = None
        self.model: str | None = None
        self._task = task
        self._decode = BY_PATH[task.endpoint].decode
        self._envelopes = msgspec.json.Decoder(_Envelope)
        self._custom_ids: set[str] = set()

    def rows(self, file: BinaryIO) -> Iterator[tuple[CheckedRow, LineError | None]]:
        num_rows = 0
        for number, offset, line in _lines(file, self._task.max_line_bytes):
            if line is not None and not line.strip():
                continue
            num_rows += 1
            if num_rows > self._task.max_rows:
                message = f"The file has more than {self._task.max_rows} rows: split it into several batches."
                self.fatal = LineError("too_many_rows", message, None, number)
                return
            yield self._check(number, offset, line)
        if num_rows == 0:
            self.fatal = LineError("empty_file", "The file has no rows.", None, None)

    def _check(self, number: int, offset: int, line: bytes | None) -> tuple[CheckedRow, LineError | None]:
        custom_id: str | None = None
        try:
            envelope = self._envelope(line)
            if isinstance(envelope.custom_id, str):
                custom_id = envelope.custom_id[:MAX_CUSTOM_ID].replace("\0", "")
            body = self._body(envelope)
        except _BadLineError as bad:
            error = LineError(bad.code, bad.message, bad.param, number)
            row_error = RowError(error.code, error.message, error.param, number)
            refusal = error_line(self._task.batch_id, number - 1, custom_id, row_error)
            return CheckedRow(number - 1, custom_id, offset, 0, refusal), error
        assert line is not None
        return CheckedRow(number - 1, custom_id, offset + line.index(body), len(body), None), None

    def _envelope(self, line: bytes | None) -> _Envelope:
        if line is None:
            raise _BadLineError("line_too_long", f"This line is longer than {self._task.max_line_bytes} bytes.")
        try:
            return self._envelopes.decode(line)
        except msgspec.ValidationError:
            raise _BadLineError("invalid_json_line", "This line is not a JSON object.") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise _BadLineError("invalid_json_line", f"This line is not valid JSON: {error}.") from None

    def _body(self, envelope: _Envelope) -> bytes:
        self._check_custom_id(envelope.custom_id)
        if envelope.method != "POST":
            raise _BadLineError("invalid_method", "'method' must be \"POST\".", "method")
        if envelope.url != self._task.endpoint:
            message = f"'url' must be the batch's endpoint, {self._task.endpoint}."
            raise _BadLineError("invalid_url", message, "url")
        if isinstance(envelope.body, UnsetType):
            raise _BadLineError("missing_required_parameter", "'body' is missing.", "body")
        body = bytes(envelope.body)
        self._check_request(body)
        return body

    def _check_custom_id(self, custom_id: Any) -> None:
        if custom_id is None:
            raise _BadLineError("missing_required_parameter", "'custom_id' is missing.", "custom_id")
        if not isinstance(custom_id, str) or not 0 < len(custom_id) <= MAX_CUSTOM_ID or "\0" in custom_id:
            message = f"'custom_id' must be a string of 1 to {MAX_CUSTOM_ID} characters."
            raise _BadLineError("invalid_custom_id", message, "custom_id")
        if custom_id in self._custom_ids:
            message = f"The custom_id '{custom_id}' is that of an earlier line."
            raise _BadLineError("duplicate_custom_id", message, "custom_id")
        self._custom_ids.add(custom_id)

    def _check_request(self, body: bytes) -> None:
        try:
            request = self._decode(body)
        except InvalidRequestError as error:
            param = f"body.{error.param}" if error.param else "body"
            raise _BadLineError(error.code or "invalid_request", error.message, param) from None
        if request.model is not None and request.model not in self._task.models:
            message = f"The model '{request.model}' does not exist."
            raise _BadLineError("model_not_found", message, "body.model")
        if request.stream:
            raise _BadLineError("unsupported", "'stream' makes no sense in a batch.", "body.stream")
        if self.model is None:
            self.model = request.model or self._task.models[0]


def _lines(file: BinaryIO, max_bytes: int) -> Iterator[tuple[int, int, bytes | None]]:
    """(number from 1, offset, line); None for a line that is too long."""
    number, offset = 0, 0
    while line := file.readline(max_bytes + 1):
        number += 1
        start, offset = offset, offset + len(line)
        if number == 1 and line.startswith(_BYTE_ORDER_MARK):
            start, line = start + 3, line[3:]
        if len(line) <= max_bytes:
            yield number, start, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(max_bytes)
            offset += len(line)
        yield number, start, None

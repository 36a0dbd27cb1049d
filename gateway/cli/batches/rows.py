"""A file of rows looked through before it is uploaded, and a file of prompts made into one."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO, get_args

from gateway.protocol.endpoints import BY_PATH, CHAT, BatchPath

MAX_ROWS = 50_000  # of one batch: OpenAI's limits
MAX_BYTES = 200_000_000
ENDPOINTS = get_args(BatchPath)
_MAX_ID_LENGTH = 512


@dataclass(frozen=True, slots=True)
class Fault:
    line: int  # from 1
    message: str


@dataclass(slots=True)
class CheckedRows:
    """What a file of rows holds. The server looks closer; this finds at once what it would say later."""

    num_rows: int = 0
    num_bytes: int = 0
    endpoint: str | None = None  # that of the first good row
    faults: list[Fault] = field(default_factory=list)

    @classmethod
    def read(cls, lines: Iterable[bytes]) -> CheckedRows:
        checked = cls()
        line_of: dict[str, int] = {}
        for number, line in enumerate(lines, 1):
            checked.num_bytes += len(line)
            if not line.strip():
                continue
            checked.num_rows += 1
            try:
                checked._take(_row(line), number, line_of)
            except ValueError as error:
                checked.faults.append(Fault(number, str(error)))
        return checked

    def _take(self, row: Mapping[str, Any], number: int, line_of: dict[str, int]) -> None:
        """Raises ValueError."""
        url = row["url"]
        if self.endpoint is None:
            self.endpoint = url
        if url != self.endpoint:
            raise ValueError(f"its url is {url}, that of the rows before {self.endpoint}: a batch has one")
        earlier = line_of.setdefault(row["custom_id"], number)
        if earlier != number:
            raise ValueError(f"its custom_id {row['custom_id']!r} is that of line {earlier}, too")

    @property
    def trouble(self) -> str | None:
        """Why the file as a whole cannot be a batch."""
        if not self.num_rows:
            return "there is no row in it"
        if len(self.faults) == self.num_rows:
            return "none of its lines is a row of a batch"
        if self.num_rows > MAX_ROWS or self.num_bytes > MAX_BYTES:
            size = f"{self.num_rows:,} rows and {self.num_bytes / 1e6:,.1f} MB"
            return f"{size} are too much: a batch has at most {MAX_ROWS:,} rows and {MAX_BYTES / 1e6:.0f} MB. " + (
                f"Divide it with `split -l {MAX_ROWS // 2}`, or use client.batches.run of the SDK, which does"
            )
        return None


def _row(line: bytes) -> Mapping[str, Any]:
    """Raises ValueError that says what is wrong."""
    try:
        row = json.loads(line)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    custom_id = row.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= _MAX_ID_LENGTH:
        raise ValueError(f"custom_id must be a string of 1 to {_MAX_ID_LENGTH} characters, your name for the row")
    if row.get("method") != "POST":
        raise ValueError('method must be "POST"')
    if row.get("url") not in ENDPOINTS:
        raise ValueError(f"url must be {' or '.join(ENDPOINTS)}")
    body = row.get("body")
    needed = BY_PATH[row["url"]].prompt_param
    if not isinstance(body, dict) or needed not in body:
        raise ValueError(f"body must be an object with '{needed}'")
    if body.get("stream"):
        raise ValueError("body must not ask for a stream")
    return row


def prompt_rows(lines: Iterable[str], params: Mapping[str, Any], system: str | None) -> Iterator[bytes]:
    """One chat for each line that is not blank, named after the line's number."""
    before = [{"role": "system", "content": system}] if system else []
    for number, line in enumerate(lines, 1):
        if prompt := line.strip():
            body = {**params, "messages": [*before, {"role": "user", "content": prompt}]}
            row = {"custom_id": f"line-{number}", "method": "POST", "url": CHAT.path, "body": body}
            yield json.dumps(row, ensure_ascii=False).encode(errors="replace") + b"\n"


def write_prompts(lines: Iterable[str], params: Mapping[str, Any], system: str | None, file: BinaryIO) -> None:
    file.writelines(prompt_rows(lines, params, system))
    file.seek(0)

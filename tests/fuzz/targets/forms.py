"""Uploads: whatever a form looks like, its file is stored as it is, or an error says why not and nothing stays."""

from __future__ import annotations

import json
from functools import cache

from fuzz.cursor import Cursor
from fuzz.in_process_server import InProcessServer
from fuzz.targets.http import check_answer

MAX_BYTES = 4096
BOUNDARY = b"b"
_CONTENT_TYPES = (
    b"multipart/form-data; boundary=b",
    b'multipart/form-data; boundary="b"',
    b"multipart/form-data; charset=utf-8; boundary=b",
    b"multipart/form-data",
    b"multipart/mixed; boundary=b",
    b"multipart/form-data; boundary=",
)


def check(data: bytes) -> None:
    cursor = Cursor(data)
    content_type = cursor.choice(_CONTENT_TYPES)
    body = _assembled(cursor) if cursor.below(2) else cursor.rest()
    server = _server()
    status, head, answer = server.answer(
        b"POST /v1/files HTTP/1.1\r\nHost: 127.0.0.1:8000\r\nConnection: close\r\nContent-Type: %s\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (content_type, len(body), body)
    )
    check_answer(b"POST", status, head, answer)
    if status == 200:
        file = json.loads(answer)
        assert file["bytes"] <= len(body)
        server.loop.run_until_complete(server.store.delete_file("", file["id"]))


def _assembled(cursor: Cursor) -> bytes:
    """A form whose frame is sound, for what is in its parts."""
    body = b""
    for _ in range(cursor.below(5)):
        headers = cursor.choice(
            (
                b'Content-Disposition: form-data; name="purpose"',
                b'Content-Disposition: form-data; name="file"; filename="a"',
                b'Content-Disposition: form-data; name="file"; filename="%s"' % cursor.take(cursor.below(32)),
                b"Content-Disposition: form-data; %s" % cursor.take(cursor.below(64)),
                cursor.take(cursor.below(64)),
            )
        )
        body += b"--b\r\n%s\r\n\r\n%s\r\n" % (headers, cursor.chunk())
    return body + cursor.choice((b"--b--\r\n", b"--b--", b"--b", b""))


@cache
def _server() -> InProcessServer:
    return InProcessServer()

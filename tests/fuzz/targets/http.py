"""Whole requests: any method and path, raw bytes in every header that we read, any body. Never a 5xx of our making.

An input: method, path and the choice of headers by one byte each, their values and the body as they are.
"""

from __future__ import annotations

import json
from functools import cache

from fuzz.cursor import Cursor
from fuzz.in_process_server import InProcessServer

MAX_BYTES = 4096
METHODS = (b"POST", b"GET", b"DELETE", b"HEAD", b"PUT", b"OPTIONS")
PATHS = (
    b"/v1/chat/completions",
    b"/v1/completions",
    b"/v1/advisories",
    b"/v1/webhooks/typing",
    b"/v1/batches",
    b"/v1/files",
    b"/tokenize",
    b"/detokenize",
    b"/v1/models",
    b"/health",
    b"/metrics",
    b"/version",
    b"/",
    b"/v1/sessions/",
    b"/v1/batches/",
    b"/v1/files/",
    b"/v1/batches/x/cancel?",
    b"/v1/batches/x/results?",
    b"/v1/files/x/content?",
    b"",
)
# Without Expect: aiohttp itself answers 500 to bytes there, before anything of ours is called.
HEADERS = (
    b"Content-Type",
    b"X-Session-Id",
    b"Authorization",
    b"X-Request-Id",
    b"Origin",
    b"Range",
    b"Content-Encoding",
    b"Accept",
    b"Accept-Encoding",
    b"webhook-id",
    b"webhook-timestamp",
    b"webhook-signature",
    b"If-None-Match",
    b"If-Modified-Since",
    b"If-Range",
    b"Cookie",
    b"X-Forwarded-For",
    b"User-Agent",
    b"Sec-Fetch-Site",
)
# Of a disk that is full, an engine that is away, and methods that HTTP has and we have not.
ALLOWED_5XX = {501, 503, 507}
_CUT = bytes.maketrans(b"\r\n", b"  ")


def check(data: bytes) -> None:
    cursor = Cursor(data)
    method, path = cursor.choice(METHODS), cursor.choice(PATHS)
    if not path or path.endswith((b"/", b"?")):
        path += cursor.take(cursor.below(64)).translate(_CUT).replace(b" ", b"+")
    headers = [(b"Host", b"127.0.0.1:8000"), (b"Connection", b"close")]
    headers += [(cursor.choice(HEADERS), cursor.chunk().translate(_CUT)) for _ in range(cursor.below(6))]
    if not any(name == b"Content-Type" for name, _ in headers):
        headers.append((b"Content-Type", b"application/json"))
    body = cursor.rest()
    headers.append((b"Content-Length", b"%d" % len(body)))
    head = b"\r\n".join([b"%s %s HTTP/1.1" % (method, path or b"/"), *(b"%s: %s" % header for header in headers)])
    check_answer(method, *_server().answer(head + b"\r\n\r\n" + body))


def check_answer(method: bytes, status: int, head: bytes, body: bytes) -> None:
    assert status < 500 or status in ALLOWED_5XX, (status, body[:300])
    if status >= 400 and method != b"HEAD" and b"application/json" in head:
        error = json.loads(body)["error"]
        assert error["message"]
        assert error.keys() == {"message", "type", "param", "code"}


@cache
def _server() -> InProcessServer:
    return InProcessServer()

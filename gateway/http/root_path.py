"""The prefix that a proxy has before every path: `--root-path`. Nothing behind this file sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage

MakeRequest = Callable[..., web.BaseRequest]


def below(root: str, make_request: MakeRequest) -> MakeRequest:
    """root: without a slash at its end. Paths without it stay as they are: some proxies take it off themselves."""

    def make(message: RawRequestMessage, *connection: Any) -> web.BaseRequest:
        path = message.url.raw_path
        if path == root or path.startswith(root + "/"):
            url = message.url.with_path(path[len(root) :] or "/", encoded=True, keep_query=True)
            message = message._replace(url=url, path=url.raw_path_qs)
        return make_request(message, *connection)

    return make

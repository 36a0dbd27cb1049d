"""How a client reaches its server: frozen, checked once, and the same for sync and async."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import TypedDict

import httpx

from . import _environment
from ._version import __version__

DEFAULT_BASE_URL = "http://127.0.0.1:8000"
DEFAULT_MAX_RETRIES = 2
# Seconds, as everywhere in httpx. A long answer that is not streamed is silent until it is complete, hence the long
# read timeout; a server that does not even accept a connection is found out quickly.
DEFAULT_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
# Many requests at once are what an LLM client does; httpx would queue the hundred-and-first.
CONNECTION_LIMITS = httpx.Limits(max_connections=1000, max_keepalive_connections=100)


class ClientOptions(TypedDict, total=False):
    """What `Client(...)` and `client.with_options(...)` take.

    api_key      sent as a bearer token; default $HOCKET_API_KEY
    model        used by calls that name none
    timeout      seconds, or `hocket.Timeout(30, connect=2)` per phase; None waits forever.
                 While streaming, `read` bounds the gap between two chunks, not the whole answer
    max_retries  attempts after the first on 408, 429, 5xx and connection errors; default 2
    headers      added to every request
    """

    api_key: str | None
    model: str | None
    timeout: httpx.Timeout | float | None
    max_retries: int
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Options:
    """`ClientOptions` with their defaults, and where the server is, without `/v1`."""

    base_url: str
    _: KW_ONLY
    api_key: str | None = field(default=None, repr=False)
    model: str | None = None
    timeout: httpx.Timeout | float | None = field(default_factory=lambda: DEFAULT_TIMEOUT)
    max_retries: int = DEFAULT_MAX_RETRIES
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if httpx.URL(self.base_url).scheme not in ("http", "https"):
            raise ValueError(f"base_url must start with http:// or https://, not {self.base_url!r}")
        if self.max_retries < 0:
            raise ValueError(f"max_retries must be at least 0, not {self.max_retries}")

    @classmethod
    def at(cls, base_url: str | None, options: ClientOptions) -> Options:
        url = base_url or _environment.base_url() or DEFAULT_BASE_URL
        given: ClientOptions = {**options, "api_key": options.get("api_key") or _environment.api_key()}
        return cls(url.rstrip("/").removesuffix("/v1"), **given)

    def request_headers(self) -> dict[str, str]:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        headers = {"user-agent": f"hocket-client/{__version__} python/{python}", "accept": "application/json"}
        if self.api_key:
            headers["authorization"] = f"Bearer {self.api_key}"
        return headers | {name.lower(): value for name, value in self.headers.items()}

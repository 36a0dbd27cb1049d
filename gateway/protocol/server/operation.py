"""One method of one route: what it takes, what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

JSON, TEXT, HTML, BYTES = "application/json", "text/plain", "text/html", "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Parameter:
    """Of the query."""

    name: str
    schema: dict[str, Any]
    meaning: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    method: str  # in capitals
    path: str  # as aiohttp names the resource
    tag: str
    summary: str
    body: Any = None  # the type of a JSON body
    form: dict[str, Any] | None = None  # the schema of a form
    answer: Any = None  # the type of a JSON answer; None: see media
    media: str = JSON  # of the answer; empty: it has no body
    status: int = 200  # of success
    streams: bool = False  # the answer may be server-sent events
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()  # besides those that every route may answer with
    needs_key: bool = True
    is_alias: bool = False  # of a path with a version
    is_anthropic: bool = False  # errors are in Anthropic's shape

    @property
    def id(self) -> str:
        if self.is_alias:
            return f"{self.method.lower()}{self.path.replace('/', '_')}_alias"
        words = self.path.replace("/v1", "").replace("{", "by_").replace("}", "").strip("/").replace("/", "_")
        return f"{self.method.lower()}_{words.replace('.', '_') or 'page'}"

    @property
    def path_parameters(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]

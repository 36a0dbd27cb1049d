"""What is known about one HTTP request while it is served; the access log is made of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from gateway.engine.classify import Profile


class ServedRequest(Protocol):
    """What the record says of a request to the model once it is let in."""

    @property
    def first_token_at(self) -> float | None: ...

    @property
    def num_prompt_tokens(self) -> int: ...

    @property
    def num_output_tokens(self) -> int: ...


@dataclass(slots=True)
class RequestRecord:
    id: str  # x-request-id
    arrived_at: float  # on the gateway's clock
    tenant: str = ""  # fingerprint of the API key
    profile: Profile | None = None  # of a request to the model, also of one that is refused
    generation: ServedRequest | None = None

    @staticmethod
    def of(request: web.Request) -> RequestRecord:
        """REQUIRES: the request has passed the outermost middleware."""
        return request[_RECORD]

    @staticmethod
    def find(request: web.Request) -> RequestRecord | None:
        return request.get(_RECORD)

    def attach(self, request: web.Request) -> None:
        request[_RECORD] = self


_RECORD = web.RequestKey("RECORD", RequestRecord)

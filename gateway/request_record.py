"""What is known about one HTTP request while it is served; the access log is made of it."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from gateway.generation import Generation


@dataclass(slots=True)
class RequestRecord:
    id: str  # x-request-id
    arrived_at: float  # on the services' clock
    tenant: str = ""  # fingerprint of the API key
    generation: Generation | None = None

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

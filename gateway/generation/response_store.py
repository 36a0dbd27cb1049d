"""Answers of /v1/responses that may be asked for again, or gone on from: in memory, up to a limit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from gateway.protocol.chat import Message
from gateway.protocol.errors import NotFoundError

_ENTRY_BYTES = 512  # what an entry takes besides its texts, about


@dataclass(frozen=True, slots=True)
class StoredResponse:
    id: str
    body: bytes  # the response object
    messages: tuple[Message, ...]  # the conversation up to it, its answer last; without instructions
    num_bytes: int

    @classmethod
    def of(cls, response_id: str, body: bytes, messages: tuple[Message, ...], num_characters: int) -> StoredResponse:
        return cls(response_id, body, messages, _ENTRY_BYTES * (1 + len(messages)) + len(body) + 2 * num_characters)


class ResponseStore:
    """Each tenant sees its own. When it is full, whoever holds most loses the oldest. Any thread may call."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._of_tenant: dict[str, OrderedDict[str, StoredResponse]] = {}
        self._bytes_of: dict[str, int] = {}
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        return sum(self._bytes_of.values())

    def put(self, tenant: str, response: StoredResponse) -> None:
        """One that is larger than the whole store is not kept."""
        if response.num_bytes > self._max_bytes:
            return
        with self._lock:
            self._of_tenant.setdefault(tenant, OrderedDict())[response.id] = response
            self._bytes_of[tenant] = self._bytes_of.get(tenant, 0) + response.num_bytes
            while self.num_bytes > self._max_bytes:
                largest = max(self._bytes_of, key=self._bytes_of.__getitem__)
                self._drop(largest, next(iter(self._of_tenant[largest])))

    def get(self, tenant: str, response_id: str, param: str | None = None) -> StoredResponse:
        """Raises NotFoundError."""
        with self._lock:
            held = self._of_tenant.get(tenant)
            found = None if held is None else held.get(response_id)
        if found is None:
            raise NotFoundError(
                f"There is no response '{response_id}': it was not kept, was deleted, or had to make room.",
                param=param,
                code="response_not_found",
            )
        return found

    def delete(self, tenant: str, response_id: str) -> None:
        """Raises NotFoundError."""
        self.get(tenant, response_id)
        with self._lock:
            self._drop(tenant, response_id)

    def _drop(self, tenant: str, response_id: str) -> None:
        """Idempotent. REQUIRES: the lock."""
        held = self._of_tenant.get(tenant, OrderedDict())
        dropped = held.pop(response_id, None)
        if dropped is not None:
            self._bytes_of[tenant] -= dropped.num_bytes
        if not held:
            self._of_tenant.pop(tenant, None)
            self._bytes_of.pop(tenant, None)

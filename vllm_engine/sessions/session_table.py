"""What is remembered of sessions: the tokens of each one's last request, and what has been announced of its next.

A session is known by tenant, salt and id together. When the table is full, the tenant with the most loses its least
recently used one, or the newcomer's own tenant if none has more (as cpp/core/sessions/session_table.h).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from schedcore.tiers.session_files import Int32, SessionName


@dataclass(slots=True)
class Session:
    name: SessionName
    tokens: Int32 = field(default_factory=lambda: np.zeros(0, np.int32))  # of its last request, as far as computed
    lora_request: Any = None  # of that request
    draft: list[int] = field(default_factory=list)  # the next one's prompt as far as it is known: complete blocks
    lease_end: float = 0.0  # seconds
    is_leased: bool = False  # an announced request is expected until lease_end
    is_answered: bool = False  # it has come
    is_active: bool = False  # there may be something to prepare
    probe: Any = None  # a request of vLLM's that is never served: it asks for the target
    leased: list[Any] = field(default_factory=list)  # blocks of the device
    num_leased: int = 0  # tokens in them
    preparing: str | None = None  # the name of the request that prepares it
    num_before: int = 0  # tokens that the device had before that
    num_prepared: int = 0  # tokens brought back or computed for it, and not used yet

    def target(self, block_size: int) -> list[int]:
        """Tokens to have on the device: complete blocks of the draft, or of the last request."""
        tokens = self.draft or self.tokens.tolist()
        return tokens[: len(tokens) // block_size * block_size]


class SessionTable:
    def __init__(self, max_num_sessions: int) -> None:
        self._max_num_sessions = max_num_sessions
        self._tenants: dict[str, OrderedDict[SessionName, Session]] = {}  # least recently used first
        self._num_sessions = 0

    def __len__(self) -> int:
        return self._num_sessions

    def find(self, name: SessionName) -> Session | None:
        """It counts as just used."""
        sessions = self._tenants.get(name.tenant)
        if sessions is None or name not in sessions:
            return None
        sessions.move_to_end(name)
        return sessions[name]

    def add(self, name: SessionName) -> tuple[Session, Session | None]:
        """REQUIRES: it is not there. It, and who had to go for it."""
        gone = None
        if self._num_sessions >= self._max_num_sessions:
            gone = next(iter(self._tenants[self._largest(name.tenant)].values()))
            self.remove(gone.name)
        session = self._tenants.setdefault(name.tenant, OrderedDict())[name] = Session(name)
        self._num_sessions += 1
        return session, gone

    def remove(self, name: SessionName) -> None:
        sessions = self._tenants[name.tenant]
        del sessions[name]
        self._num_sessions -= 1
        if not sessions:
            del self._tenants[name.tenant]

    def _largest(self, tenant: str) -> str:
        most = max(map(len, self._tenants.values()))
        if len(self._tenants.get(tenant, ())) == most:
            return tenant
        return next(name for name, sessions in self._tenants.items() if len(sessions) == most)

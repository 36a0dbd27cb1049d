"""What comes to this engine through other gateways: how large it is and how it begins, for a gateway that counts how
many nodes all of them need together.

Who wants to hear of it says so (`wire.Hello`), and hears of what comes from then on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from schedcore._core import routing
from schedcore.api.session_digest import session_digest
from schedcore.api.types import EngineRequest, RequestClass
from schedcore.api.wire import ArrivalNote

TOKENS_PER_KEY = 128
MAX_KEYS_TOKENS = 1 << 15  # of a prompt that are looked at
MAX_UNTOLD = 2048  # that are kept for a gateway; of more, the last


def arrival_note(request: EngineRequest) -> ArrivalNote | None:
    """None: it is offline work, which takes what is idle, or goes on where another engine's ended and was told there.

    No secret is in its keys, so that all gateways and engines make the same ones. Who makes prompts whose keys collide
    only has the fleet counted too small.
    """
    if request.request_class is RequestClass.OFFLINE or request.num_prior_tokens:
        return None
    ids = np.array(request.prompt_token_ids[:MAX_KEYS_TOKENS], np.int32)
    salt = session_digest("", request.cache_salt, request.cache_salt)
    return ArrivalNote(
        len(request.prompt_token_ids),
        request.max_tokens,
        session_digest(request.tenant, request.cache_salt, request.session_id),
        routing.prefix_keys(salt, ids, TOKENS_PER_KEY).astype("<u8").tobytes(),
    )


class ArrivalNews:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._untold: dict[bytes, deque[tuple[float, ArrivalNote]]] = {}  # by gateway that wants it
        self._clock = clock

    def join(self, gateway: bytes) -> None:
        """It wants to hear."""
        self._untold[gateway] = deque(maxlen=MAX_UNTOLD)

    def forget(self, gateway: bytes) -> None:
        """It is gone."""
        self._untold.pop(gateway, None)

    def note_request(self, gateway: bytes, request: EngineRequest) -> None:
        others = [untold for other, untold in self._untold.items() if other != gateway]
        if others and (note := arrival_note(request)) is not None:
            came = self._clock() - request.age_ms / 1e3
            for untold in others:
                untold.append((came, note))

    def take(self, gateway: bytes) -> list[tuple[float, ArrivalNote]]:
        """Seconds ago that each came to its gateway: those since the last call."""
        untold = self._untold.get(gateway)
        if not untold:
            return []
        now = self._clock()
        found = [(now - came, note) for came, note in untold]
        untold.clear()
        return found

"""Which of several servers takes a request: the one with least to do, or where its beginning is cached. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from schedcore.api.types import EngineRequest

MAX_REMEMBERED = 8192  # beginnings
PREFIX_TOKENS = 64
SLACK_REQUESTS, SLACK_SHARE = 2, 0.25  # by which a home may be busier than the least busy one


class Routing:
    """Requests of a session, and prompts that begin alike, go to the same server while it is not much busier."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Hashable, str] = OrderedDict()

    def choose(self, request: EngineRequest, loads: Mapping[str, int]) -> str | None:
        """loads: requests at each server that could take it. None: there is none."""
        if not loads:
            return None
        least = min(loads, key=lambda server: loads[server])
        key = _key(request)
        home = self._homes.get(key, least)
        most = loads[least] * (1 + SLACK_SHARE) + SLACK_REQUESTS
        chosen = home if loads.get(home, most + 1) <= most else least
        self._homes[key] = chosen
        self._homes.move_to_end(key)
        if len(self._homes) > MAX_REMEMBERED:
            self._homes.popitem(last=False)
        return chosen


def _key(request: EngineRequest) -> Hashable:
    if request.session_id:
        return request.tenant, request.cache_salt, request.session_id
    return request.cache_salt, hash(tuple(request.prompt_token_ids[:PREFIX_TOKENS]))

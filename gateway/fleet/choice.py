"""Which node takes a request: where its session is, else the one with least to do. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping

from schedcore.api.types import Advisory, EngineRequest

MAX_SESSIONS = 65536  # remembered; the least recently heard of are forgotten
SLACK_REQUESTS, SLACK_SHARE = 4, 0.5  # by which a session's home may be busier than the least busy node


class Choice:
    """Equally busy nodes take turns."""

    def __init__(self) -> None:
        self._homes: OrderedDict[Hashable, str] = OrderedDict()
        self._num_chosen: dict[str, int] = {}

    @property
    def num_sessions(self) -> dict[str, int]:
        """By node."""
        counts: dict[str, int] = {}
        for home in self._homes.values():
            counts[home] = counts.get(home, 0) + 1
        return counts

    def choose(self, asked: EngineRequest | Advisory, loads: Mapping[str, int]) -> str | None:
        """loads: requests at each node that could take it. None: there is none."""
        if not loads:
            return None
        least = min(loads, key=lambda node: (loads[node], self._num_chosen.get(node, 0)))
        key = (asked.tenant, asked.cache_salt, asked.session_id) if asked.session_id else None
        chosen = least
        if key is not None:
            most = loads[least] * (1 + SLACK_SHARE) + SLACK_REQUESTS
            home = self._homes.get(key, least)
            chosen = home if loads.get(home, most + 1) <= most else least
            self._homes[key] = chosen
            self._homes.move_to_end(key)
            if len(self._homes) > MAX_SESSIONS:
                self._homes.popitem(last=False)
        if isinstance(asked, EngineRequest):
            self._num_chosen[chosen] = self._num_chosen.get(chosen, 0) + 1
        return chosen

    def join(self, node: str) -> None:
        """It has taken as many as the others, so that it is not given all that comes."""
        self._num_chosen[node] = max(self._num_chosen.values(), default=0)

    def forget(self, node: str) -> None:
        """What its engine had of sessions is lost."""
        self._homes = OrderedDict((key, home) for key, home in self._homes.items() if home != node)
        self._num_chosen.pop(node, None)

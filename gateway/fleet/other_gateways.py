"""What tenants have at the other gateways of these nodes, as the nodes' engines say it: their sums over the engines.

Counts are as old as an engine's statistics and a turn of the gateway: half a second, or a step where that is longer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from gateway.engine.engine_line import EngineLine
from schedcore.api.types import RequestClass

Waiting = dict[str, tuple[int, int]]  # by tenant: requests without a first token, tokens of their prompts


@dataclass(frozen=True, slots=True)
class OthersWork:
    waiting: Mapping[RequestClass, Waiting] = field(default_factory=dict)
    served: Mapping[str, int] = field(default_factory=dict)  # offline tokens by tenant, since this was last said

    def __bool__(self) -> bool:
        return bool(self.waiting or self.served)


class OtherGateways:
    def __init__(self) -> None:
        self.listener: Callable[[OthersWork], None] = lambda _: None
        self._was_something = False

    def look(self, lines: Iterable[EngineLine]) -> None:
        """lines: of the engines that are there. The listener hears nothing while there is nothing."""
        waiting: dict[RequestClass, Waiting] = {}
        served: Counter[str] = Counter()
        for line in lines:
            for note in line.tenants:
                if note.num_waiting:
                    of_class = waiting.setdefault(note.request_class, {})
                    num_requests, num_tokens = of_class.get(note.tenant, (0, 0))
                    of_class[note.tenant] = (num_requests + note.num_waiting, num_tokens + note.num_waiting_tokens)
            served.update(line.take_served())
        work = OthersWork(waiting, served)
        if work or self._was_something:
            self.listener(work)
        self._was_something = bool(work)

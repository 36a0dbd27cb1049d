"""Flex requests in the engine, by tenant: they are offline work, and their tenant's batches pay for them. So they do
for offline work that other gateways gave to the same engines.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


class FlexWork:
    """Belongs to one event loop. Invariant: `num_open` has only tenants with open requests."""

    def __init__(self) -> None:
        self.num_open: Counter[str] = Counter()  # requests in the engine
        self._costs: Counter[str] = Counter()  # tokens of those that ended since they were last taken

    def begin(self, tenant: str, num_requests: int) -> None:
        self.num_open[tenant] += num_requests

    def end(self, tenant: str, num_requests: int, cost: int) -> None:
        """cost: tokens, prompt and output."""
        self.num_open[tenant] -= num_requests
        if not self.num_open[tenant]:
            del self.num_open[tenant]
        self._costs[tenant] += cost

    def note_others(self, costs: Mapping[str, int]) -> None:
        """Tokens that offline work of other gateways has taken, since this was last said."""
        self._costs.update(costs)

    def take_costs(self) -> Counter[str]:
        """Of what has ended since the last call."""
        costs, self._costs = self._costs, Counter()
        return costs

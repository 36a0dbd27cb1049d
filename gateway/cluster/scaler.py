"""How many nodes a fleet has, following what a gateway says it needs: up at once, down slowly. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from prometheus_client.parser import text_string_to_metric_families

from gateway.cluster.fleet_file import Scaling

_GAUGE = "hocket_desired_nodes"


def within(scaling: Scaling, num_nodes: int) -> int:
    return min(max(num_nodes, scaling.min_nodes), scaling.max_nodes)


def desired_nodes(metrics: str) -> int:
    """As a gateway says it in its metrics. Raises ValueError."""
    for family in text_string_to_metric_families(metrics):
        if family.name == _GAUGE and family.samples:
            return round(family.samples[0].value)
    raise ValueError(f"{_GAUGE} is not among the metrics: is it a gateway with --fleet-listen and a target to hold?")


def most_desired(urls: Sequence[str], scrape: Callable[[str], str]) -> int:
    """Of gateways of which one, or each, says how many nodes all of them need. scrape: may raise OSError.

    Raises ValueError if none says it.
    """
    found, problems = [], []
    for url in urls:
        try:
            found.append(desired_nodes(scrape(url)))
        except (OSError, ValueError) as error:
            problems.append(f"{url} does not say how many nodes are needed: {error}")
    if not found:
        raise ValueError("; ".join(problems))
    return max(found)


class Scaler:
    def __init__(self, scaling: Scaling) -> None:
        self._scaling = scaling
        self._fewer_since: float | None = None
        self._most = 0  # wanted since then

    def next(self, now: float, num_nodes: int, desired: int) -> int:
        """now: seconds, of any clock. The number from now on, of what there are and what is wanted."""
        wanted = within(self._scaling, desired)
        if wanted >= num_nodes:
            self._fewer_since = None
            return wanted
        if self._fewer_since is None:
            self._fewer_since, self._most = now, wanted
        self._most = max(self._most, wanted)
        if now - self._fewer_since < self._scaling.down_after_seconds:
            return num_nodes
        self._fewer_since = None
        return self._most

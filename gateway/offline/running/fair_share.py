"""Which batch feeds its next row to the engine: fair sharing among tenants by tokens, then among a tenant's batches.

The engine's core queues too, and picks from its pool what reuses most of the cache, whoever asked for it. So fairness
is decided by what the core is given:

* The look-ahead is bounded in rows and tokens. A tenant who is alone has all of it.
* While several have work, each has an equal part of it.
* Equal parts of a step would make little work wait for much: a step takes longer the more rows it has. So the rows of a
  tenant who has at most half of what any other has left are favoured: the core pauses the others' for them, but for
  what lengthens a step by half (cpp/core/stages/class_order.h). Little work ends in at most twice the time that it
  would take alone, and whoever has more loses less than he has himself.
* Whoever has been served `max_lag_tokens` more than the one furthest behind waits. So rows which the core passes over
  get their turn, and whoever comes back again and again with little has no more of the engine than the others.
* Somebody new need not wait until what is in the engine has drained: `num_excess` says how many rows that have not
  begun the others should take back.

Flex requests are offline work as well. They go to the engine on their own, and count as rows that are there: as part of
what their tenant has left, of its share of the look-ahead, and of what it has been served.

Tokens are charged when a row starts, by estimate, and corrected when it ends. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gateway.offline.running.fair_clock import FairClock

_SMALL = 2  # times what a tenant has left, that all others have: then it goes first


@dataclass(frozen=True, slots=True, kw_only=True)
class LookAhead:
    """How much of the offline work the engine sees at a time."""

    max_rows: int
    max_tokens: int  # of prompts, estimated; one row may always start
    max_lag_tokens: int

    def times(self, number: int) -> LookAhead:
        """Of so many engines together."""
        return LookAhead(
            max_rows=number * self.max_rows,
            max_tokens=number * self.max_tokens,
            max_lag_tokens=number * self.max_lag_tokens,
        )


@dataclass(slots=True)
class _Batch:
    tenant: str
    num_pending: int
    weight: float = 1.0
    num_rows: int = 0  # in the engine
    is_paused: bool = False  # its pending rows may not start at present

    @property
    def num_waiting(self) -> int:
        """Rows that may start."""
        return 0 if self.is_paused else self.num_pending


@dataclass(slots=True)
class _Tenant:
    batches: dict[str, _Batch] = field(default_factory=dict)
    num_flex: int = 0  # requests in the engine
    time: FairClock[str] = field(default_factory=FairClock)

    @property
    def num_rows(self) -> int:
        """In the engine, flex requests among them."""
        return self.num_flex + sum(batch.num_rows for batch in self.batches.values())

    @property
    def num_left(self) -> int:
        """Rows that have not ended, and may."""
        return self.num_flex + sum(batch.num_rows + batch.num_waiting for batch in self.batches.values())


class FairShare:
    """Invariant: a batch's rows are pending, in the engine, or ended; the caller says when one moves."""

    def __init__(self, look_ahead: LookAhead) -> None:
        self._look_ahead = look_ahead
        self._tenants: dict[str, _Tenant] = {}
        self._batches: dict[str, _Batch] = {}
        self._started: FairClock[str] = FairClock()  # of tenants, by what they were charged
        self._served: FairClock[str] = FairClock()  # of tenants, by what has ended
        self.num_rows = 0  # in the engine
        self.num_tokens = 0  # of their prompts

    def set_look_ahead(self, look_ahead: LookAhead) -> None:
        """Engines have come or gone."""
        self._look_ahead = look_ahead

    def open(self, batch_id: str, tenant: str, num_pending: int) -> None:
        """REQUIRES: the batch is not open."""
        batch = self._batches[batch_id] = _Batch(tenant, num_pending)
        self._tenants.setdefault(tenant, _Tenant()).batches[batch_id] = batch
        self._update(tenant, batch_id)

    def close(self, batch_id: str) -> None:
        """REQUIRES: none of its rows is in the engine."""
        batch = self._batches.pop(batch_id)
        tenant = self._tenants[batch.tenant]
        del tenant.batches[batch_id]
        tenant.time.forget(batch_id)
        self._update(batch.tenant)

    def drop_pending(self, batch_id: str) -> None:
        """None of its rows will start any more."""
        self.set_pending(batch_id, 0)

    def set_pending(self, batch_id: str, num_pending: int) -> None:
        """So many of its rows are to start: others have begun some, or left them behind."""
        batch = self._batches[batch_id]
        batch.num_pending = num_pending
        self._update(batch.tenant, batch_id)

    def pause(self, batch_id: str, is_paused: bool) -> None:
        """Whether its pending rows must wait, for reasons of their own: the others have what it would have had."""
        batch = self._batches[batch_id]
        if batch.is_paused != is_paused:
            batch.is_paused = is_paused
            self._update(batch.tenant, batch_id)

    def set_weight(self, batch_id: str, weight: float) -> None:
        """A batch's share of its tenant's: twice the weight, twice the tokens."""
        self._batches[batch_id].weight = weight

    def next_batch(self) -> str | None:
        """Whose row should start now; None: nobody's, until one ends."""
        look_ahead = self._look_ahead
        if self.num_rows and (self.num_rows >= look_ahead.max_rows or self.num_tokens >= look_ahead.max_tokens):
            return None
        for name in self._in_turn():
            if self._may_start(name):
                return self._next_of(self._tenants[name])
        return None

    def start(self, batch_id: str, num_prompt_tokens: int, cost: int) -> None:
        """A pending row goes to the engine. cost: tokens that it will probably take, prompt and output."""
        batch = self._batches[batch_id]
        batch.num_pending -= 1
        batch.num_rows += 1
        self.num_rows += 1
        self.num_tokens += num_prompt_tokens
        self._charge(batch_id, batch, cost)

    def end(self, batch_id: str, num_prompt_tokens: int, cost: int, actual_cost: int) -> None:
        """A row has ended. num_prompt_tokens, cost: as start() was told."""
        batch = self._return(batch_id, num_prompt_tokens)
        self._charge(batch_id, batch, actual_cost - cost)
        self._served.charge(batch.tenant, actual_cost)
        self._update(batch.tenant, batch_id)

    def take_back(self, batch_id: str, num_prompt_tokens: int, cost: int) -> None:
        """A row is pending again."""
        batch = self._return(batch_id, num_prompt_tokens)
        batch.num_pending += 1
        self._charge(batch_id, batch, -cost)

    def note_flex(self, num_open: Mapping[str, int], costs: Mapping[str, int]) -> None:
        """By tenant: flex requests in the engine, and tokens of those that have ended since the last call."""
        for name in num_open.keys() - self._tenants.keys():
            self._tenants[name] = _Tenant()
        for name, tenant in self._tenants.items():
            tenant.num_flex = num_open.get(name, 0)
            self._update(name)
            for times in (self._started, self._served):
                times.charge(name, costs.get(name, 0))

    def is_favoured(self, tenant: str) -> bool:
        """Whether rows of the tenant that start now go before the others'."""
        num_left = self._tenants[tenant].num_left
        others = [other.num_left for name, other in self._tenants.items() if other.num_left and name != tenant]
        return bool(others) and _SMALL * num_left <= min(others) and not self._is_ahead(tenant)

    def num_excess(self, tenant: str) -> int:
        """Rows in the engine beyond the tenant's share, while somebody else's have to wait."""
        num_rows = self._tenants[tenant].num_rows
        others = (other for name, other in self._tenants.items() if name != tenant)
        return max(0, num_rows - self._limit(tenant)) if any(other.num_left > other.num_rows for other in others) else 0

    def tenants(self) -> list[str]:
        return list(self._tenants)

    def _charge(self, batch_id: str, batch: _Batch, cost: int) -> None:
        self._started.charge(batch.tenant, cost)
        self._tenants[batch.tenant].time.charge(batch_id, cost / batch.weight)

    def _return(self, batch_id: str, num_prompt_tokens: int) -> _Batch:
        batch = self._batches[batch_id]
        batch.num_rows -= 1
        self.num_rows -= 1
        self.num_tokens -= num_prompt_tokens
        return batch

    def _update(self, name: str, batch_id: str | None = None) -> None:
        """Who has work."""
        tenant = self._tenants[name]
        for times in (self._started, self._served):
            (times.join if tenant.num_left else times.leave)(name)
        if batch_id is not None:
            batch = tenant.batches[batch_id]
            (tenant.time.join if batch.num_rows + batch.num_waiting else tenant.time.leave)(batch_id)

    def _in_turn(self) -> list[str]:
        waiting = [name for name, tenant in self._tenants.items() if tenant.num_left > tenant.num_rows]
        return sorted(waiting, key=self._started.time)

    def _next_of(self, tenant: _Tenant) -> str:
        waiting = (name for name, batch in tenant.batches.items() if batch.num_waiting)
        return min(waiting, key=tenant.time.time)

    def _may_start(self, name: str) -> bool:
        num_rows = self._tenants[name].num_rows
        if num_rows == 0:
            return True
        return num_rows < self._limit(name) and not self._is_ahead(name)

    def _limit(self, name: str) -> int:
        """Rows in the engine that the tenant may have."""
        num_others = sum(1 for other, tenant in self._tenants.items() if tenant.num_left and other != name)
        return max(1, self._look_ahead.max_rows // (num_others + 1))

    def _is_ahead(self, name: str) -> bool:
        return self._served.time(name) - self._served.least > self._look_ahead.max_lag_tokens

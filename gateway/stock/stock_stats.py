"""What servers that somebody else runs count for, in the figures of an engine: ours, and their gauges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gateway.stock.stock_server import StockServer
from schedcore.api.types import EngineRequest, EngineStats, FinishReason, RequestClass, ServerStats, TokenDelta


@dataclass(slots=True)
class StockCounts:
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    num_retries: int = 0  # on another server
    num_finished: list[int] = field(default_factory=lambda: [0] * len(FinishReason))

    def add(self, request: EngineRequest) -> None:
        self.num_prompt_tokens += len(request.prompt_token_ids)

    def note(self, deltas: Sequence[TokenDelta]) -> None:
        for delta in deltas:
            self.num_output_tokens += len(delta.token_ids)
            if delta.finish_reason is not FinishReason.NONE:
                self.end(delta.finish_reason)

    def end(self, reason: FinishReason) -> None:
        self.num_finished[reason] += 1


def stock_stats(servers: Sequence[StockServer], counts: StockCounts, num_queued: int) -> EngineStats:
    """num_queued: offline requests that wait here for a window. Steps are not seen from outside."""
    running, waiting = [0] * len(RequestClass), [0] * len(RequestClass)
    for server in servers:
        running[RequestClass.ONLINE] += server.num_open - server.num_offline - server.num_online_pending
        running[RequestClass.OFFLINE] += server.num_offline
        waiting[RequestClass.ONLINE] += server.num_online_pending
    waiting[RequestClass.OFFLINE] += num_queued
    gauges = [server.gauges for server in servers if server.gauges is not None]
    return EngineStats(
        num_running=running,
        num_waiting=waiting,
        num_units=sum(gauge.num_blocks for gauge in gauges),
        num_free_units=int(sum(gauge.num_blocks * (1 - min(1.0, gauge.cache_usage)) for gauge in gauges)),
        num_cached_units=0,
        num_steps=0,
        num_prompt_tokens=counts.num_prompt_tokens,
        num_output_tokens=counts.num_output_tokens,
        num_cached_prompt_tokens=0,
        num_queried_prompt_tokens=0,
        num_preemptions=0,
        num_evicted_blocks=0,
        num_finished=list(counts.num_finished),
        step_seconds=0.0,
        schedule_seconds=0.0,
        commit_seconds=0.0,
        execute_seconds=0.0,
        servers=[_of_server(server) for server in servers],
        num_retries=counts.num_retries,
    )


def _of_server(server: StockServer) -> ServerStats:
    by_class = [0] * len(RequestClass)
    by_class[RequestClass.ONLINE] = server.num_open - server.num_offline
    by_class[RequestClass.OFFLINE] = server.num_offline
    return ServerStats(server.url, server.is_usable, by_class, server.window.size)

"""An engine that is several, for whoever decides himself which of them has what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from gateway.engine.delta_stream import DeltaStream
from schedcore.api.types import EngineRequest, EngineStats


@runtime_checkable
class EngineNodes(Protocol):
    def node_stats(self) -> Mapping[str, EngineStats | None]:
        """By name, of the nodes that take requests now; None: of an engine that has said nothing yet."""

    def stream_at(self, node: str, requests: Sequence[EngineRequest]) -> DeltaStream:
        """As EngineClient.stream(), at that node. Raises EngineDeadError if it takes none."""

"""Sessions of a node that is drained: the other nodes share them, before its manager is told to let it go.

Each of the others takes the part that falls to it by the sessions' digests, and says when it has them. Who is silent
for long is not waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

from gateway.fleet.node import TURN_SECONDS, Node, peer_source
from gateway.fleet.node_routing import NodeRouting
from schedcore.api import wire

MOVE_SECONDS = 20.0  # that the sessions of a node may take to move; a drain's deadline may be sooner


class SessionMoves:
    def __init__(self, routing: NodeRouting) -> None:
        """routing: is told who has what."""
        self._routing = routing
        self._under_way: dict[str, _Move] = {}  # by the node that is drained
        self._request_ids = itertools.count(1)

    def begin(self, node: Node, others: Sequence[Node], seconds: float, then: Callable[[], None]) -> None:
        """then: is called once, when they have moved, or `seconds` are over, or nobody can take them."""
        source = peer_source(node)
        takers = sorted((other for other in others if peer_source(other) is not None), key=lambda other: other.name)
        if source is None or not takers or node.name in self._under_way:
            then()
            return
        move = self._under_way[node.name] = _Move(takers, round(min(seconds, MOVE_SECONDS) / TURN_SECONDS), then)
        for i, taker in enumerate(takers):
            assert taker.engine is not None
            order = wire.Adopt(next(self._request_ids), source, i, len(takers))
            taker.engine.line.adopt(order, partial(self._on_adopted, node.name, move, taker))

    def pass_turn(self) -> None:
        for name, move in list(self._under_way.items()):
            move.num_turns -= 1
            if move.num_turns <= 0:
                self._end(name, move)

    def _on_adopted(self, name: str, move: _Move, taker: Node, sessions: list[tuple[int, int]]) -> None:
        self._routing.note_sessions(taker.name, sessions)
        move.names.discard(taker.name)
        if not move.names:
            self._end(name, move)

    def _end(self, name: str, move: _Move) -> None:
        if self._under_way.get(name) is move:
            del self._under_way[name]
            move.then()


class _Move:
    def __init__(self, takers: Sequence[Node], num_turns: int, then: Callable[[], None]) -> None:
        self.names = {taker.name for taker in takers}  # of those that have not answered
        self.num_turns = num_turns  # that are left
        self.then = then

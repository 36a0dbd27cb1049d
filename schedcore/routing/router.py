"""A node table and the options of its routing, told in plain values: what a gateway holds, and what a record repeats.

Every call that can change a choice goes to the record, if there is one: route() is a function of what it was told, so
replay() on a fresh table finds the same choices, or the first one that a changed router takes differently. A record
holds keys of prompts and digests of sessions, no tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, TypeVar

import msgspec
import numpy as np

from schedcore._core import RequestClass
from schedcore.latency.latency_profile import LatencyCoefficients, core_model
from schedcore.routing.route import (
    Choice,
    NodeLoad,
    NodeState,
    NodeTable,
    NodeTraits,
    RouteOptions,
    RouteRequest,
    route,
    routing_named,
)

T = TypeVar("T")
Values = dict[str, Any]


class RoutingRecordError(ValueError):
    """The file is no record of a router's decisions."""


class Router:
    """`options` are fields of RouteOptions, `limits` those of NodeTable. Raises ValueError for an unknown routing."""

    def __init__(
        self, routing: str = "advised", *, options: Values | None = None, limits: Values | None = None,
        record: BinaryIO | None = None,
    ) -> None:  # fmt: skip
        self.options = RouteOptions(routing_named(routing), **(options or {}))
        self.table = NodeTable(**(limits or {}))
        self._encoder = msgspec.msgpack.Encoder()
        self._record = record
        self._write("router", {"routing": routing, "options": options or {}, "limits": limits or {}})

    def add_node(self, incarnation: int, form: str, coefficients: LatencyCoefficients, **traits: Any) -> int:
        """`traits` are the further fields of NodeTraits."""
        node = self.table.add_node(NodeTraits(core_model(form, coefficients), **traits), incarnation)
        self._write("add_node", {**_latency(form, coefficients), "incarnation": incarnation, **traits})
        return node

    def restart_node(
        self, node: int, incarnation: int, form: str, coefficients: LatencyCoefficients, **traits: Any
    ) -> None:
        """The same name, another process: nothing of the old one is known any more."""
        self.table.restart_node(node, NodeTraits(core_model(form, coefficients), **traits), incarnation)
        self._write(
            "restart_node", {"node": node, **_latency(form, coefficients), "incarnation": incarnation, **traits}
        )

    def set_state(self, node: int, state: NodeState) -> None:
        self.table.set_state(node, state)
        self._write("set_state", {"node": node, "state": int(state)})

    def note_load(self, node: int, incarnation: int, **load: float) -> None:
        """`load`: the fields of NodeLoad."""
        self.table.note_load(node, incarnation, NodeLoad(**load))
        self._write("note_load", {"node": node, "incarnation": incarnation, **load})

    def note_pull_rate(self, from_machine: int, to_machine: int, bytes_per_second: float) -> None:
        arguments = {"from_machine": from_machine, "to_machine": to_machine, "bytes_per_second": bytes_per_second}
        self._tell("note_pull_rate", self.table.note_pull_rate, arguments)

    def note_session(self, digest: int, node: int, incarnation: int, num_tokens: float) -> None:
        arguments = {"digest": digest, "node": node, "incarnation": incarnation, "num_tokens": num_tokens}
        self._tell("note_session", self.table.note_session, arguments)

    def expect_session(self, digest: int, node: int, until: float) -> None:
        """Another gateway has been advised of it."""
        self._tell("expect_session", self.table.expect_session, {"digest": digest, "node": node, "until": until})

    def meet_session(self, digest: int) -> None:
        self._tell("meet_session", self.table.meet_session, {"digest": digest})

    def forget_session(self, digest: int, node: int) -> None:
        self._tell("forget_session", self.table.forget_session, {"digest": digest, "node": node})

    def choose(self, now: float, **request: Any) -> Choice:
        """Chooses and counts the request as sent. `request`: the fields of RouteRequest."""
        asked = RouteRequest(**request)
        choice = route(asked, self.table, self.options, now)
        self.table.note_choice(asked, choice, now)
        if self._record is not None:
            self._write("choose", {"now": now, **_plain(request)}, _outcome(choice))
        return choice

    def _tell(self, name: str, call: Callable[..., None], arguments: Values) -> None:
        call(**arguments)
        self._write(name, arguments)

    def _write(self, name: str, arguments: Values, result: Any = None) -> None:
        if self._record is not None:
            frame = self._encoder.encode([name, arguments, result])
            self._record.write(len(frame).to_bytes(4, "little") + frame)


@dataclass(frozen=True, slots=True)
class RoutingReplay:
    """num_choices that were made again, and the first that differs, if one does: its number, recorded and replayed."""

    num_choices: int
    difference: tuple[int, Any, Any] | None = None


def replay(record: BinaryIO) -> RoutingReplay:
    """Raises RoutingRecordError."""
    router, num_choices = None, 0
    while head := record.read(4):
        frame = record.read(int.from_bytes(head, "little"))
        try:
            name, arguments, result = msgspec.msgpack.decode(frame, type=tuple[str, Values, Any])
            if name == "router":
                router = Router(**arguments)
                continue
            if router is None or name not in _CALLS:
                raise ValueError(f"{name!r} is no call that can be repeated here")
            made = getattr(router, name)(**_calls_arguments(arguments))
        except (msgspec.DecodeError, ValueError, TypeError, IndexError) as error:
            raise RoutingRecordError(f"no record of a router's decisions: {error}") from None
        if name == "choose":
            if _outcome(made) != result:
                return RoutingReplay(num_choices, (num_choices, result, _outcome(made)))
            num_choices += 1
    return RoutingReplay(num_choices)


_CALLS = frozenset({
    "add_node", "restart_node", "set_state", "note_load", "note_pull_rate", "note_session", "expect_session",
    "meet_session", "forget_session", "choose",
})  # fmt: skip


def _latency(form: str, coefficients: LatencyCoefficients) -> Values:
    return {"form": form, "coefficients": msgspec.structs.asdict(coefficients)}


def _plain(request: Values) -> Values:
    keys = request.get("keys")
    return request if keys is None else {**request, "keys": keys.tobytes()}


def _calls_arguments(arguments: Values) -> Values:
    found = dict(arguments)
    if found.get("keys") is not None:
        found["keys"] = np.frombuffer(found["keys"], np.uint64)
    if "coefficients" in found:
        found["coefficients"] = LatencyCoefficients(**found["coefficients"])
    if "state" in found:
        found["state"] = NodeState(found["state"])
    if "request_class" in found:
        found["request_class"] = RequestClass(found["request_class"])
    return found


def _outcome(choice: Choice) -> list[Any]:
    """What has to come out again, to the bit."""
    return [choice.node, choice.source, int(choice.reason), choice.cost]

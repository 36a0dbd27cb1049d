"""The messages between nodes and gateways of a fleet, and operators: msgpack, one per frame (frame_socket.py).

Gateways listen. A node dials each of them and says NodeHello; from then on its NodeState, twice a second, is its life,
and the answers to it are the gateway's. Requests do not pass here: they go to engines (wire.py). A message only gains
fields that have a default, so that nodes and gateways of neighbouring versions mix.
"""

from __future__ import annotations

import enum

import msgspec

HEARTBEAT_SECONDS = 0.5  # between two NodeStates
MAX_FLEET_FRAME_BYTES = 1 << 20


class SeatState(enum.StrEnum):
    """Of a node's engine."""

    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"  # lives, and takes no new requests
    DEAD = "dead"  # and is started again soon


class EngineSeat(msgspec.Struct, frozen=True):
    """A node's engine, as its node manager sees it."""

    state: SeatState
    incarnation: str = ""  # of its process; empty before it is ready
    endpoint: str = ""  # tcp://host:port
    pid: int = 0
    num_restarts: int = 0
    last_death: str = ""  # why the one before it ended
    is_adopted: bool = False  # it was started by an earlier manager of this node
    block_endpoint: str = ""  # tcp://host:port where it gives cached blocks to other engines; empty: nowhere


class NodeHello(msgspec.Struct, frozen=True, tag="node_hello"):
    """First message of a node; answered by Welcome, Superseded or Refused."""

    node: str  # its name
    incarnation: str  # of its manager's process
    started: float  # of that process, seconds since 1970: of two that claim one name, the later one has it
    fingerprint: str  # of the model: schedcore/api/model_path.py
    machine: str = ""
    version: str = ""


class NodeState(msgspec.Struct, frozen=True, tag="node_state"):
    """Every HEARTBEAT_SECONDS, and at once when something has changed; answered by Heard."""

    seat: EngineSeat
    is_leaving: bool = False  # drained for good: it will not come back by itself


class DrainNode(msgspec.Struct, frozen=True, tag="drain_node"):
    """Of an operator, to a gateway; answered by Answered."""

    node: str
    deadline_seconds: float = 60.0


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The node is part of the fleet from now on."""

    gateway: str = ""  # its process, 128 random bits: at whatever address it is reached


class Heard(msgspec.Struct, frozen=True, tag="heard"):
    """The answer to a NodeState: so a node knows that its gateway lives."""


class Superseded(msgspec.Struct, frozen=True, tag="superseded"):
    """Another node, started later, has the name: this one ends itself and its engine."""


class Refused(msgspec.Struct, frozen=True, tag="refused"):
    """The node cannot be part of this fleet as it is."""

    reason: str


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """No new requests; the node leaves when the open ones have ended, or at the deadline."""

    deadline_seconds: float


class Fence(msgspec.Struct, frozen=True, tag="fence"):
    """That engine, and no later one, is to be killed: it hangs."""

    incarnation: str
    reason: str


class Answered(msgspec.Struct, frozen=True, tag="answered"):
    """To an operator."""

    problem: str = ""  # empty: it is done


ToGateway = NodeHello | NodeState | DrainNode
FromGateway = Welcome | Heard | Superseded | Refused | Drain | Fence | Answered

_encoder = msgspec.msgpack.Encoder()
_to_gateway = msgspec.msgpack.Decoder(ToGateway)
_from_gateway = msgspec.msgpack.Decoder(FromGateway)


def encode(message: ToGateway | FromGateway) -> bytes:
    return _encoder.encode(message)


def decode_to_gateway(frame: bytes) -> ToGateway:
    """Raises msgspec.DecodeError, msgspec.ValidationError, or UnicodeDecodeError."""
    message: ToGateway = _to_gateway.decode(frame)
    return message


def decode_from_gateway(frame: bytes) -> FromGateway:
    """Raises msgspec.DecodeError, msgspec.ValidationError, or UnicodeDecodeError."""
    message: FromGateway = _from_gateway.decode(frame)
    return message

"""The messages between gateway and engine, and their encoding: msgpack, one message per frame (frame_socket.py).

The engine listens, gateways connect. A tagged union per direction, so that an unknown message fails to decode instead
of being misread.
"""

from __future__ import annotations

import msgspec

from schedcore.api.types import (
    Advisory,
    CacheReset,
    EngineInfo,
    EngineRequest,
    EngineStats,
    PeerSource,
    RequestClass,
    SessionState,
    TokenDelta,
)


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a gateway; answered by Ready when the model is loaded."""

    wants_arrivals: bool = False  # what comes through other gateways is to be told in Stats


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    request: EngineRequest


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """Idempotent: an unknown or finished id is ignored."""

    request_id: int


class Advise(msgspec.Struct, frozen=True, tag="advise"):
    """Answered by one Session."""

    advisory: Advisory


class Adopt(msgspec.Struct, frozen=True, tag="adopt"):
    """Of the sessions that another engine knows, each whose digest leaves `index` when divided by `count` is to be
    known here, its cache in the host tier. Answered by one Adopted when that is so, or cannot be.

    Only to an engine that has a block_endpoint: others do not know this message.
    """

    request_id: int
    source: PeerSource
    index: int
    count: int


class ResetCache(msgspec.Struct, frozen=True, tag="reset_cache"):
    """Drop all of the prefix cache that no request uses. Answered by one Reset."""

    request_id: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answered by Pong between two steps: who is asked and silent has hung."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """Abort everything open, answer with the final deltas, then exit."""


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    info: EngineInfo
    incarnation: str = ""  # of the engine's process, 128 random bits: what carries another one is of another process
    endpoint: str = ""  # tcp://host:port where it listens to other machines; empty: nowhere
    block_endpoint: str = ""  # where it gives cached blocks to other engines; empty: nowhere


class Deltas(msgspec.Struct, frozen=True, tag="deltas"):
    """All that one step produced for this gateway, in plan order."""

    deltas: list[TokenDelta]


class Session(msgspec.Struct, frozen=True, tag="session"):
    """The answer to an Advise, named by its request_id."""

    state: SessionState


class Adopted(msgspec.Struct, frozen=True, tag="adopted"):
    """The answer to an Adopt, named by its request_id."""

    request_id: int
    sessions: list[tuple[int, int]]  # digest (session_digest.py), tokens


class Reset(msgspec.Struct, frozen=True, tag="reset"):
    """The answer to a ResetCache, named by its request_id."""

    answer: CacheReset


class SessionNote(msgspec.Struct, frozen=True, array_like=True):
    """Of a session that another gateway sent to the engine."""

    digest: int  # session_digest.py
    num_tokens: int  # of its last prompt, or of the draft that announced the next one
    is_expected: bool = False  # announced: its request has not come yet


OTHER_TENANTS = "*"  # in a note: those that have least, together


class TenantNote(msgspec.Struct, frozen=True, array_like=True):
    """Of a tenant's requests of one class that other gateways sent to the engine."""

    tenant: str  # as requests have it
    request_class: RequestClass
    num_waiting: int = 0  # without a first token
    num_waiting_tokens: int = 0  # of their prompts
    num_served: int = 0  # tokens of offline work, prompt and output, since the Stats before this


class ArrivalNote(msgspec.Struct, frozen=True, array_like=True):
    """Of an online request, for who counts how many nodes are needed: serving/arrival_news.py."""

    num_tokens: int  # of its prompt
    max_outputs: int
    session: int  # session_digest.py
    keys: bytes  # of its prompt's beginnings, 64 bits each, little-endian


class Stats(msgspec.Struct, frozen=True, tag="stats"):
    """Sent unasked, a few times a second while working and once when the engine falls idle."""

    stats: EngineStats
    incarnation: str = ""
    sessions: list[SessionNote] = []  # that this gateway has not heard of, in order of time; others follow
    tenants: list[TenantNote] = []  # all there are: who is not among them has nothing that waits
    arrivals: list[tuple[float, ArrivalNote]] = []  # seconds ago, through other gateways, since the Stats before this


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The answer to a Ping."""


class Fatal(msgspec.Struct, frozen=True, tag="fatal"):
    """The engine is about to exit; every open request has failed."""

    message: str


ToEngine = Hello | Submit | Abort | Advise | Adopt | ResetCache | Ping | Shutdown
ToGateway = Ready | Deltas | Session | Adopted | Reset | Stats | Pong | Fatal

_encoder = msgspec.msgpack.Encoder()
_to_engine = msgspec.msgpack.Decoder(ToEngine)
_to_gateway = msgspec.msgpack.Decoder(ToGateway)


def encode(message: ToEngine | ToGateway) -> bytes:
    return _encoder.encode(message)


def decode_to_engine(frame: bytes) -> ToEngine:
    """Raises msgspec.DecodeError or msgspec.ValidationError on anything else than a ToEngine message."""
    message: ToEngine = _to_engine.decode(frame)
    return message


def decode_to_gateway(frame: bytes) -> ToGateway:
    """Raises msgspec.DecodeError or msgspec.ValidationError on anything else than a ToGateway message."""
    message: ToGateway = _to_gateway.decode(frame)
    return message

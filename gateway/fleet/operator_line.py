"""An operator's order to a fleet, given at a gateway's port for nodes: the cluster's certificates say who may."""

from __future__ import annotations

import asyncio

import msgspec

from gateway.engine.frame_line import FrameLine
from gateway.fleet.network import dial
from schedcore.api import fleet_wire
from schedcore.api.cluster_tls import GATEWAY, ClusterTls
from schedcore.api.fleet_wire import MAX_FLEET_FRAME_BYTES, Answered, DrainNode

ANSWER_SECONDS = 10.0


class OrderError(Exception):
    """One line that says why it was not obeyed."""


async def give_order(endpoint: str, tls: ClusterTls | None, order: DrainNode) -> None:
    """endpoint: tcp://host:port of the gateway. Raises OrderError."""
    answer = asyncio.get_running_loop().create_future()

    def on_frames(frames: list[bytes]) -> None:
        if not answer.done():
            answer.set_result(frames[0])

    def on_end(error: ConnectionError) -> None:
        if not answer.done():
            answer.set_exception(error)

    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            line = FrameLine(await dial(endpoint, tls, GATEWAY, MAX_FLEET_FRAME_BYTES), on_frames, on_end)
            try:
                line.send(fleet_wire.encode(order))
                answered = fleet_wire.decode_from_gateway(await answer)
            finally:
                line.close()
    except (OSError, msgspec.DecodeError) as error:
        raise OrderError(f"the gateway at {endpoint} did not answer: {error or type(error).__name__}") from None
    if not isinstance(answered, Answered):
        raise OrderError(f"the gateway at {endpoint} did not understand")
    if answered.problem:
        raise OrderError(answered.problem)

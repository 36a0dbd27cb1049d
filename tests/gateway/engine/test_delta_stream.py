"""Deltas reach whoever waits for their request, and every request ends once."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.delta_stream import DeltaRouter
from schedcore.api.types import ErrorCode, FinishReason, TokenDelta


def token(request_id: int, reason: FinishReason = FinishReason.NONE) -> TokenDelta:
    return TokenDelta(request_id, [65], reason)


async def test_deltas_that_arrive_together_are_received_together() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1, 2]) as stream, router.open([3]) as other:
        router.dispatch([token(1), token(3), token(2), token(1)])
        assert [delta.request_id for delta in await stream.receive()] == [1, 2, 1]
        assert [delta.request_id for delta in await other.receive()] == [3]


async def test_reader_waits_until_something_arrives() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1]) as stream:
        receiving = asyncio.create_task(stream.receive())
        await asyncio.sleep(0)
        assert not receiving.done()
        router.dispatch([token(1)])
        assert len(await receiving) == 1


async def test_stream_is_empty_once_every_request_is_final() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1, 2]) as stream:
        router.dispatch([token(1, FinishReason.STOP), token(2, FinishReason.LENGTH)])
        assert len(await stream.receive()) == 2
        assert await stream.receive() == []
    assert router.num_open == 0


async def test_leaving_aborts_what_is_open_and_nothing_else() -> None:
    aborted: list[int] = []
    router = DeltaRouter(aborted.append)
    with router.open([1, 2, 3]) as stream:
        router.dispatch([token(1, FinishReason.STOP)])
        stream.end(2)
        stream.end(2)
    assert aborted == [2, 3]
    assert router.num_open == 0


async def test_deltas_of_requests_that_nobody_waits_for_are_dropped() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1, 2]) as stream:
        stream.end(1)
        router.dispatch([token(1), token(2), token(1, FinishReason.ABORT), token(99)])
        assert [delta.request_id for delta in await stream.receive()] == [2]


async def test_a_dead_engine_is_the_final_delta_of_every_open_request() -> None:
    aborted: list[int] = []
    router = DeltaRouter(aborted.append)
    with router.open([1, 2]) as stream:
        router.dispatch([token(1), token(2, FinishReason.STOP)])
        router.fail_all(ErrorCode.ENGINE_DEAD, "gone")
        router.fail_all(ErrorCode.ENGINE_DEAD, "gone")
        deltas = await stream.receive()
        assert await stream.receive() == []
    finals = [delta for delta in deltas if delta.finish_reason is not FinishReason.NONE]
    assert [(delta.request_id, delta.finish_reason) for delta in finals] == [
        (2, FinishReason.STOP),
        (1, FinishReason.ERROR),
    ]
    assert aborted == []


async def test_failure_comes_after_what_has_arrived() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1]) as stream:
        router.dispatch([token(1)])
        stream.fail(RuntimeError("first"))
        stream.fail(RuntimeError("second"))
        assert len(await stream.receive()) == 1
        with pytest.raises(RuntimeError, match="first"):
            await stream.receive()


async def test_a_consumer_is_called_once_for_all_that_comes_together_and_without_a_turn_of_the_loop() -> None:
    router = DeltaRouter(lambda request_id: None)
    seen: list[list[int]] = []
    with router.open([1, 2]) as stream:
        router.dispatch([token(1)])
        draining = asyncio.create_task(
            stream.drain_to(lambda deltas: seen.append([d.request_id for d in deltas]) or False)
        )
        await asyncio.sleep(0)
        assert seen == [[1]]  # what was there before
        router.dispatch([token(2), token(1), token(2)])
        assert seen == [[1], [2, 1, 2]]
        router.dispatch([token(1, FinishReason.STOP), token(2, FinishReason.STOP)])
        await draining
    assert seen == [[1], [2, 1, 2], [1, 2]]


async def test_a_consumer_that_has_enough_is_not_called_and_misses_nothing() -> None:
    router = DeltaRouter(lambda request_id: None)
    seen: list[int] = []

    def one_batch(deltas: list[TokenDelta]) -> bool:
        seen.append(len(deltas))
        return True

    with router.open([1]) as stream:
        draining = asyncio.create_task(stream.drain_to(one_batch))
        await asyncio.sleep(0)
        router.dispatch([token(1)])
        router.dispatch([token(1), token(1)])
        assert seen == [1]
        await draining
        await stream.drain_to(one_batch)
    assert seen == [1, 2]


async def test_what_a_consumer_raises_and_what_fails_ends_the_feeding_only() -> None:
    router = DeltaRouter(lambda request_id: None)
    with router.open([1]) as stream, router.open([2]) as other:

        def refuse(deltas: list[TokenDelta]) -> bool:
            raise ValueError("not this")

        draining = asyncio.create_task(stream.drain_to(refuse))
        await asyncio.sleep(0)
        router.dispatch([token(1), token(2)])
        assert len(await other.receive()) == 1
        with pytest.raises(ValueError, match="not this"):
            await draining

        draining = asyncio.create_task(stream.drain_to(lambda deltas: stream.fail(RuntimeError("failed")) or False))
        await asyncio.sleep(0)
        router.dispatch([token(1)])
        with pytest.raises(RuntimeError, match="failed"):
            await draining

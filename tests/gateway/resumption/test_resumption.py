"""A reader sees one stream, however many engines it takes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
import pytest

from fakes.byte_tokenizer import END
from fakes.eventually import eventually
from fakes.fake_engine import INFO, FakeEngine, saying
from fakes.manual_clock import ManualClock
from gateway.engine.delta_stream import DeltaStream
from gateway.engine.engine_client import EngineDeadError
from gateway.metrics.resumption_metrics import ResumptionMetrics
from gateway.resumption.resumption import Resumption
from schedcore.api.types import (
    RESUMPTION,
    EngineError,
    EngineRequest,
    ErrorCode,
    FinishReason,
    Pooling,
    PoolingKind,
    SamplingParams,
    TokenDelta,
)

TEXT = "the quick brown fox jumps over the lazy dog"


class World:
    def __init__(self, wait_seconds: float = 60.0, tokens_per_step: int = 1) -> None:
        self.engine = FakeEngine(saying(TEXT), is_manual=True, tokens_per_step=tokens_per_step)
        self.metrics, self.clock = ResumptionMetrics(), ManualClock()
        self.resumption = Resumption(self.engine, self.metrics, self.clock, wait_seconds)

    def open(self, *request_ids: int, **fields: Any) -> DeltaStream:
        defaults: dict[str, Any] = {"max_tokens": 1000, "stop_token_ids": [END]}
        return self.resumption.stream([request(i, **{**defaults, **fields}) for i in request_ids])

    def steps(self, num: int) -> None:
        for _ in range(num):
            self.clock.advance(0.01)
            self.engine.step()

    async def die(self, code: ErrorCode = ErrorCode.ENGINE_DEAD) -> None:
        """And be judged."""
        self.engine.die("It burned.", code, for_good=False)
        await asyncio.sleep(0.005)

    async def revive(self) -> None:
        self.clock.advance(1.0)
        num_waiting = self.resumption.num_waiting
        self.engine.revive()
        await eventually(lambda: not num_waiting or self.resumption.num_waiting < num_waiting)


def request(request_id: int, prompt: bytes = b"Hi", **fields: Any) -> EngineRequest:
    return EngineRequest(request_id, list(prompt), **fields)


def taken(stream: DeltaStream) -> list[TokenDelta]:
    return stream.take(10**6)


def text(deltas: list[TokenDelta], request_id: int = 1) -> str:
    return bytes(t for d in deltas if d.request_id == request_id for t in d.token_ids if t != END).decode()


async def test_a_reader_sees_a_pause_and_nothing_else() -> None:
    world = World()
    with world.open(1, 2) as stream:
        world.steps(5)
        await world.die()
        deltas = taken(stream)
        assert text(deltas) == TEXT[:5]
        assert all(delta.finish_reason is FinishReason.NONE for delta in deltas)
        await world.revive()
        world.steps(len(TEXT))
        deltas += taken(stream)
    for i in (1, 2):
        assert text(deltas, i) == TEXT
        assert sum(d.finish_reason is not FinishReason.NONE for d in deltas if d.request_id == i) == 1
    assert world.metrics.num_resumed == {"died": 2}
    assert sum(world.metrics.pauses.counts) == 2
    assert world.metrics.pauses.sum == pytest.approx(2 * 1.01, abs=0.001)
    assert world.resumption.num_open == 0


async def test_what_is_asked_again_is_the_rest() -> None:
    world = World()
    sampling = SamplingParams(seed=4, num_prompt_logprobs=1)
    with world.open(1, max_tokens=30, min_tokens=9, sampling=sampling, age_ms=500.0, session_id="s", tenant="t"):
        world.steps(4)
        world.clock.advance(0.25)
        await world.die()
        await world.revive()
        again = world.engine.requests[-1]
    assert again.prompt_token_ids == [*b"Hi", *TEXT[:4].encode()]
    assert (again.num_prior_tokens, again.max_tokens, again.min_tokens) == (4, 26, 9)
    assert again.sampling == SamplingParams(seed=4)
    assert (again.session_id, again.tenant) == ("s", "t")
    assert again.age_ms == pytest.approx(500 + 40 + 250 + 1000)
    assert again.pause_ms == pytest.approx(1250)


async def test_who_had_nothing_is_asked_whole() -> None:
    world = World()
    pooling = Pooling(PoolingKind.MEAN)
    with world.open(1, max_tokens=1, pooling=pooling) as stream:
        await world.die()
        await world.revive()
        first, again = world.engine.requests
        assert msgspec.structs.replace(again, age_ms=0.0) == first
        world.steps(1)
        assert taken(stream)[-1].finish_reason is FinishReason.LENGTH


async def test_it_goes_on_over_many_deaths() -> None:
    """At random moments, with several tokens per step; poison is not suspected while there are tokens in between."""
    rng = random.Random(5)
    for _ in range(20):
        world = World(tokens_per_step=rng.randint(1, 3))
        ids = range(1, rng.randint(2, 6))
        with world.open(*ids) as stream:
            deltas: list[TokenDelta] = []
            for _ in range(4):
                world.steps(rng.randint(1, 6))
                await world.die(rng.choice([ErrorCode.ENGINE_DEAD, ErrorCode.ENGINE_HUNG]))
                await world.revive()
                deltas += taken(stream)
            world.steps(len(TEXT))
            deltas += taken(stream)
        assert [text(deltas, i) for i in ids] == [TEXT for _ in ids]


async def test_an_engine_that_stays_dead_ends_them_with_what_it_said() -> None:
    world = World()
    with world.open(1) as stream:
        world.steps(1)
        world.engine.die("It burned.")
        await eventually(lambda: world.resumption.num_open == 0)
        *_, last = taken(stream)
    assert last.error == EngineError(ErrorCode.ENGINE_DEAD, "It burned.")
    with pytest.raises(EngineDeadError):
        world.open(2)


async def test_waiting_is_bounded() -> None:
    world = World(wait_seconds=30.0)
    with world.open(1) as stream:
        await world.die()
        world.clock.advance(29.0)
        await asyncio.sleep(0.05)
        assert world.resumption.num_waiting == 1
        world.clock.advance(2.0)
        await eventually(lambda: world.resumption.num_open == 0)
        assert [delta.error for delta in taken(stream)] == [EngineError(ErrorCode.ENGINE_DEAD, "It burned.")]


async def test_switched_off_a_stream_ends_with_its_engine() -> None:
    world = World(wait_seconds=0.0)
    with world.open(1) as stream:
        world.engine.die("It burned.", for_good=False)
        assert [delta.finish_reason for delta in taken(stream)] == [FinishReason.ERROR]


async def test_an_engine_that_takes_no_prior_tokens_is_asked_for_nothing_again() -> None:
    world = World()
    world.engine.info_to_be = msgspec.structs.replace(INFO, missing=[RESUMPTION])
    with world.open(1) as stream:
        world.engine.die("It burned.", for_good=False)
        assert [delta.finish_reason for delta in taken(stream)] == [FinishReason.ERROR]


async def test_who_leaves_while_no_engine_is_there_is_not_asked_again() -> None:
    world = World()
    with world.open(1, 2) as stream:
        world.steps(2)
        await world.die()
        stream.end(1)
    assert world.resumption.num_waiting == world.resumption.num_open == 0
    world.engine.revive()
    await asyncio.sleep(0.05)
    assert len(world.engine.requests) == 2


async def test_who_leaves_on_the_next_engine_is_aborted_there() -> None:
    world = World()
    with world.open(1):
        world.steps(2)
        await world.die()
        await world.revive()
        assert world.engine.num_open == 1
    assert world.engine.num_open == world.resumption.num_open == 0


async def test_an_engine_that_is_full_is_asked_later() -> None:
    world = World()
    with world.open(1) as stream:
        await world.die()
        world.engine.refusal = EngineError(ErrorCode.QUEUE_FULL, "full", retry_seconds=3.0)
        world.engine.revive()
        await eventually(lambda: len(world.engine.requests) == 2)
        assert taken(stream) == []
        world.engine.refusal = None
        await asyncio.sleep(0.05)
        assert len(world.engine.requests) == 2
        world.clock.advance(3.1)
        await eventually(lambda: len(world.engine.requests) == 3)
        world.steps(len(TEXT) + 1)
        assert text(taken(stream)) == TEXT


async def test_a_refusal_for_another_reason_is_an_end() -> None:
    world = World()
    with world.open(1) as stream:
        world.steps(1)
        await world.die()
        world.engine.refusal = EngineError(ErrorCode.INVALID, "no")
        await world.revive()
        assert taken(stream)[-1].error == EngineError(ErrorCode.INVALID, "no")
    assert world.resumption.num_open == 0


async def test_poison_ends_alone_after_at_most_three_deaths() -> None:
    world = World()
    num_deaths = 0
    with world.open(1, 2, 3) as innocent, world.open(4) as poison:
        while not (last := taken(poison)):
            if 4 in world.engine.open_ids:
                num_deaths += 1
                await world.die()
                await world.revive()
            else:
                world.steps(1)
                await asyncio.sleep(0.001)
        assert num_deaths <= 3
        assert last[-1].error is not None
        assert last[-1].error.code is ErrorCode.POISON
        while world.resumption.num_open:
            world.steps(1)
            await asyncio.sleep(0.001)
        deltas = taken(innocent)
    assert [text(deltas, i) for i in (1, 2, 3)] == [TEXT] * 3


async def test_sixty_four_go_on_in_windows() -> None:
    world = World()
    world.engine.info_to_be = msgspec.structs.replace(INFO, max_num_seqs=8)
    with world.open(*range(64)) as stream:
        world.steps(3)
        await world.die()
        await world.revive()
        assert world.engine.num_open <= 8
        for _ in range(200):
            world.steps(1)
            await asyncio.sleep(0)
        deltas = taken(stream)
    assert all(text(deltas, i) == TEXT for i in range(64))


async def test_what_a_drained_node_had_goes_on_elsewhere_and_nobody_is_blamed() -> None:
    world = World()
    with world.open(1, 2) as stream:
        world.steps(5)
        num_asked = len(world.engine.requests)
        world.engine._router.move_all("It is drained.")
        await eventually(lambda: len(world.engine.requests) == num_asked + 2)
        assert world.engine.aborted[-2:] == [1, 2]
        world.steps(len(TEXT))
        deltas = taken(stream)
    for i in (1, 2):
        assert text(deltas, i) == TEXT
        assert sum(d.finish_reason is not FinishReason.NONE for d in deltas if d.request_id == i) == 1
    assert world.metrics.num_resumed == {"moved": 2}
    assert world.resumption.num_open == 0


async def test_what_nobody_would_go_on_with_is_not_moved() -> None:
    world = World(wait_seconds=0.0)
    with world.open(1) as stream:
        world.steps(3)
        world.engine._router.move_all("It is drained.")
        world.steps(len(TEXT))
        assert text(taken(stream)) == TEXT

"""Files come in slowly while somebody waits for tokens, and as fast as they can otherwise."""

from __future__ import annotations

import asyncio

import pytest

from gateway.http.upload_pace import BURST_BYTES, BYTES_PER_SECOND, UploadPace

PIECE = 2**18


class World:
    def __init__(self) -> None:
        self.now = 0.0
        self.is_busy = True
        self.pace = UploadPace(lambda: self.is_busy, lambda: self.now, self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)

    async def upload(self, num_bytes: int) -> None:
        for _ in range(num_bytes // PIECE):
            await self.pace.take(PIECE)


@pytest.mark.parametrize("num_uploads", [1, 4])
async def test_uploads_together_keep_to_the_rate_while_somebody_waits(num_uploads: int) -> None:
    world = World()
    await asyncio.gather(*(world.upload(2**24 // num_uploads) for _ in range(num_uploads)))
    assert world.now == pytest.approx((2**24 - BURST_BYTES) / BYTES_PER_SECOND, rel=0.1)


async def test_a_small_file_does_not_wait() -> None:
    world = World()
    await world.upload(BURST_BYTES - PIECE)
    assert world.now == 0.0


async def test_nobody_waits_on_an_idle_server_nor_afterwards_for_what_came_then() -> None:
    world = World()
    world.is_busy = False
    await world.upload(2**26)
    world.is_busy = True
    await world.upload(BURST_BYTES - PIECE)
    assert world.now == 0.0


async def test_an_upload_goes_on_at_once_when_the_last_answer_has_ended() -> None:
    world = World()
    await world.upload(BURST_BYTES)

    async def sleep(seconds: float) -> None:
        world.is_busy = False
        world.now += seconds

    world.pace = UploadPace(lambda: world.is_busy, lambda: world.now, sleep)
    await world.upload(2**24)
    assert world.now < 1.0

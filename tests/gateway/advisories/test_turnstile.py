"""Who comes through the turnstile comes alone in its turn of the event loop."""

from __future__ import annotations

import asyncio

from gateway.advisories.turnstile import Turnstile


async def turns_of_the_loop(count: list[int], until: asyncio.Event) -> None:
    while not until.is_set():
        count[0] += 1
        await asyncio.sleep(0)


async def test_one_passes_in_a_turn_of_the_event_loop_in_the_order_of_arrival() -> None:
    turnstile, turn, done = Turnstile(), [0], asyncio.Event()
    passed: list[tuple[str, int]] = []

    async def pass_through(name: str) -> None:
        await turnstile.turn()
        passed.append((name, turn[0]))

    counting = asyncio.create_task(turns_of_the_loop(turn, done))
    await asyncio.gather(*(pass_through(name) for name in "abcdef"))
    done.set()
    await counting
    assert "".join(name for name, _ in passed) == "abcdef"
    moments = [moment for _, moment in passed]
    assert sorted(set(moments)) == moments


async def test_who_is_gone_takes_no_turn_and_keeps_nobody() -> None:
    turnstile = Turnstile()
    gone = [asyncio.create_task(turnstile.turn()) for _ in range(3)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    async with asyncio.timeout(10):
        await turnstile.turn()
    assert all(task.cancelled() for task in gone)
    async with asyncio.timeout(10):
        await turnstile.turn()  # it turns again after it stood still

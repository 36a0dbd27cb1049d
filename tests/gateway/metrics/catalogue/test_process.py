"""What the pool of text work says of itself to Prometheus."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fakes.scrape import scrape
from gateway.metrics.catalogue.process import PROCESS
from gateway.model.work_pool import WorkPool, in_one_step
from gateway.protocol.errors import QueueFullError


def samples(pool: WorkPool) -> dict[str, float]:
    return {key[0]: value for key, value in scrape(PROCESS, text_work=pool).items() if "text_jobs" in key[0]}


async def test_jobs_refusals_and_what_was_dropped() -> None:
    pool, may_go_on = WorkPool(max_jobs=1), threading.Event()
    running = asyncio.create_task(pool.run(in_one_step(may_go_on.wait, 30), 1))
    await asyncio.sleep(0)
    with pytest.raises(QueueFullError):
        await pool.run(in_one_step(len, "x"), 1)
    assert samples(pool) == {
        "hocket_text_jobs": 1,
        "hocket_text_jobs_refused_total": 1,
        "hocket_text_jobs_dropped_total": 0,
    }
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    may_go_on.set()
    assert samples(pool)["hocket_text_jobs"] == 0
    assert samples(pool)["hocket_text_jobs_dropped_total"] == 1
    pool.close()

"""bench/run/soak.py: what it would find, on records made by hand. The soak itself is `make soak`."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from bench.lib.soak.batches import Batch, problems, rows
from bench.lib.soak.ledger import Ledger
from bench.lib.soak.watch import MAX_GROWTH, MIB, ONE, ZERO, Growth, Sample, forgotten, growths, restless, slope

STILL = Sample(
    at=0.0, gateway_rss=100 * MIB, engine_rss=300 * MIB, gateway_descriptors=30, engine_descriptors=12,
    gateway_threads=12, engine_threads=6, data_bytes=MIB, log_bytes=1000, metrics_lines=800,
)  # fmt: skip


def samples(**per_minute: float) -> list[Sample]:
    """Half an hour, noise and an outlier included."""
    rng = random.Random(1)
    found = []
    for minute in range(30):
        grown = {name: int(getattr(STILL, name) + value * minute) for name, value in per_minute.items()}
        sample = replace(STILL, **{"at": 60.0 * minute, **grown})
        found.append(replace(sample, gateway_rss=sample.gateway_rss + rng.randrange(MIB)))
    found[17] = replace(found[17], gateway_rss=500 * MIB, gateway_descriptors=900)
    return found


def too_much(found: list[Growth]) -> set[str]:
    return {growth.name for growth in found if growth.is_too_much}


def test_a_server_that_stays_as_it_is_passes_whatever_one_sample_says() -> None:
    assert too_much(growths(samples())) == set()


@pytest.mark.parametrize("name", MAX_GROWTH)
def test_what_grows_is_named(name: str) -> None:
    assert too_much(growths(samples(**{name: 2 * MAX_GROWTH[name] / 29}))) == {name}


def test_a_slope_is_that_of_the_line_not_of_its_ends() -> None:
    times = [float(i) for i in range(20)]
    assert slope(times, [3 * t for t in times[:-1]] + [1000.0]) == pytest.approx(3)


def test_rest_is_when_every_gauge_is_as_it_should_be() -> None:
    page = "".join(f"{name} 0.0\n" for name in ZERO) + "".join(f'{name}{{task="a"}} 1.0\n' for name in ONE)
    assert restless(page) == []
    assert restless(page.replace("hocket_leases 0.0", "hocket_leases 2.0")) == ["hocket_leases 2.0"]
    assert restless(page.replace('task="a"} 1.0', 'task="a"} 0.0')) != []
    assert restless(page.replace("hocket_sessions 0.0\n", "")) == ["hocket_sessions is not there"]


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-22 04:38:24,774 ERROR asyncio: Task exception was never retrieved",
        "Traceback (most recent call last):",
        "RuntimeWarning: coroutine 'f' was never awaited",
    ],
)
def test_what_nobody_handled_is_found_in_the_log(line: str) -> None:
    log = f"INFO worker: ready\nERROR hocket.gateway: The engine was killed by SIGKILL. Open requests: 13\n{line}\n"
    assert forgotten(log) == [line]


def line(row: int, error: Any = None) -> dict[str, Any]:
    return {"custom_id": f"row-{row}", "error": error}


def test_every_row_of_a_batch_has_exactly_one_result() -> None:
    batch = Batch("batch_1", "file-1", 3, "completed")
    ended = {"status": "completed"}
    assert problems(batch, ended, [line(0), line(1), line(2)]) == []
    assert "1 rows have no result, row-1 among them" in problems(batch, ended, [line(0), line(2)])
    assert "1 rows have several results, row-1 among them" in problems(batch, ended, [line(i) for i in (0, 1, 1, 2)])
    assert "1 results are of no row, row-7 among them" in problems(batch, ended, [line(i) for i in (0, 1, 2, 7)])
    assert "have errors" in problems(batch, ended, [line(0), line(1), line(2, {"code": "batch_expired"})])[0]
    assert "it is failed" in problems(batch, {"status": "failed"}, [line(0), line(1), line(2)])[0]


def test_a_cancelled_batch_has_a_line_for_every_row_too() -> None:
    batch = Batch("batch_1", "file-1", 2, "cancelled")
    given_up = line(1, {"code": "batch_cancelled"})
    assert problems(batch, {"status": "cancelled"}, [line(0), given_up]) == []
    assert problems(batch, {"status": "cancelled"}, [line(0)]) != []


def test_rows_are_as_many_as_were_asked_for() -> None:
    assert len(rows("demo", 5, 3, random.Random(1)).splitlines()) == 5


def test_what_fails_counts_unless_we_disturbed_the_server_meanwhile() -> None:
    ledger = Ledger()
    mark = ledger.trouble.mark()
    ledger.broken("chat", "no answer", mark)
    assert ledger.failures == ["chat: no answer"]
    ledger.trouble.begin()
    during = ledger.trouble.mark()
    ledger.trouble.end()
    for began in (mark, during):
        ledger.broken("chat", "no answer", began)
    assert ledger.num_failures == 1
    ledger.broken("chat", "no answer", ledger.trouble.mark())
    assert ledger.num_failures == 2

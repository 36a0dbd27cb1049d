"""kill -9 of gateway, engine or both while a batch runs: in the end every row has one result, as if nothing had been.

In float32: in bfloat16 a row's tokens depend, in near-ties, on what was cached when it ran, kills or not.
By default with fewer rows; `make test-kills` runs all of it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from fakes import postgresql
from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.served import Server, serving

NUM_ROWS = int(os.environ.get("HOCKET_TEST_KILL_ROWS", "600"))
NUM_KILLS = int(os.environ.get("HOCKET_TEST_KILLS", "4"))
ENDED = ("completed", "failed", "expired", "cancelled")


class MortalServer:
    """A server on one data directory that can be killed and started again."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self._folder = folder
        self._arguments = ("--max-engine-restarts", "100", "--dtype", "float32", *arguments)
        self._running = contextlib.ExitStack()
        self.num_starts = 0

    def start(self) -> None:
        self.num_starts += 1
        self.server: Server = self._running.enter_context(serving(self._folder, *self._arguments))
        self.client = self._running.enter_context(
            openai.OpenAI(base_url=f"{self.server.url}/v1", api_key="none", max_retries=5)
        )

    def stop(self) -> None:
        self._running.close()

    def kill(self, victim: str) -> None:
        with contextlib.suppress(psutil.NoSuchProcess, IndexError):  # it may be between two engines
            if victim != "gateway":
                self.server.engine.kill()
        if victim != "engine":
            self.server.process.kill()
            self.stop()
            self.start()


@pytest.fixture(params=["sqlite", "postgresql"])
def mortal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MortalServer]:
    with contextlib.ExitStack() as running:
        arguments: tuple[str, ...] = ()
        if request.param == "postgresql":
            if postgresql.binaries() is None:
                pytest.skip("PostgreSQL is not installed")
            arguments = ("--database-url", running.enter_context(postgresql.running()))
        server = MortalServer(tmp_path, *arguments)
        running.callback(server.stop)
        server.start()
        yield server


def rows() -> list[dict[str, Any]]:
    fixed = {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return [
        row(f"row-{i}", {"prompt": f"Story {i % 50}, part {i}: once", "max_tokens": 4 + i % 13} | fixed)
        for i in range(NUM_ROWS)
    ]


def answers(client: openai.OpenAI, file_id: str | None) -> dict[str, Any]:
    """What the model said, by custom id."""
    lines = results(client, file_id)
    assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(NUM_ROWS)]
    assert len({line["id"] for line in lines}) == NUM_ROWS
    return {line["custom_id"]: line["response"]["body"]["choices"] for line in lines}


@pytest.mark.skipif(os.environ.get("HOCKET_TEST_ENGINE") == "fake", reason="it is the real engine that is killed")
def test_every_row_has_one_result_whatever_is_killed(mortal: MortalServer) -> None:
    undisturbed = wait_until_ended(mortal.client, submit(mortal.client, rows()))
    expected = answers(mortal.client, undisturbed.output_file_id)

    rng = random.Random(5)
    moments = sorted(rng.sample(range(NUM_ROWS), NUM_KILLS))
    batch_id = submit(mortal.client, rows())
    num_killed = 0
    while (batch := mortal.client.batches.retrieve(batch_id)).status not in ENDED:
        counts = batch.request_counts
        if num_killed < NUM_KILLS and counts is not None and counts.completed >= moments[num_killed]:
            num_killed += 1
            mortal.kill(rng.choice(("gateway", "engine", "both")))
    assert num_killed > NUM_KILLS // 2
    assert batch.status == "completed"
    assert (batch.request_counts.completed, batch.request_counts.failed) == (NUM_ROWS, 0)
    assert answers(mortal.client, batch.output_file_id) == expected

"""Two gateways over the same nodes and one PostgreSQL database, all real: docs/fleet.md, "Several gateways".

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import openai
import pytest

from fakes import postgresql
from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.eventually import wait_until
from fakes.real_fleet import RealFleet, fleet

WHOLE = os.environ.get("HOCKET_TEST_FLEET", "") == "1"
long = pytest.mark.skipif(not WHOLE, reason="HOCKET_TEST_FLEET=1: make test-fleet")
NUM_ROWS = 600 if WHOLE else 200
LOOK_AHEAD = 8  # rows of a gateway at a time
LEASE_MS = 3000
SECONDS = 120.0  # for what should take a few: the machine may be busy


class Gateways:
    """One after the other, as they are asked for; the first one starts with two nodes, which know the first two."""

    def __init__(self, folder: Path, cluster_dir: Path, database: str, stack: ExitStack) -> None:
        self._folder, self._cluster_dir, self._stack = folder, cluster_dir, stack
        shared = ("--share-batches", "--database-url", database, "--data-dir", str(folder / "shared"))
        self._options = (*shared, "--batch-lease-ms", str(LEASE_MS), "--look-ahead-rows", str(LOOK_AHEAD))
        self.one, self.two = self._start("one"), self._start("two")
        for name in ("a", "b"):
            self.one.add(name, address=f"{self.one.address},{self.two.address}")
        for gateway in (self.one, self.two):
            gateway.wait_for("a", "up")
            gateway.wait_for("b", "up")

    def _start(self, name: str) -> RealFleet:
        folder = self._folder / name
        folder.mkdir()
        return self._stack.enter_context(fleet(folder, self._cluster_dir, *self._options))


@pytest.fixture
def gateways(tmp_path: Path, cluster_dir: Path) -> Iterator[Gateways]:
    if postgresql.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgresql.running() as database, ExitStack() as stack:
        yield Gateways(tmp_path, cluster_dir, database, stack)


def client(gateway: RealFleet) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{gateway.server.url}/v1", api_key="none", timeout=SECONDS, max_retries=0)


def submit_rows(gateway: RealFleet, number: int = NUM_ROWS) -> str:
    fields = {"model": "demo", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    return submit(client(gateway), [row(f"r{i}", {"prompt": f"Story {i}", **fields}) for i in range(number)])


def submit_to_both(gateways: Gateways) -> str:
    """However fast the rows are, they run on both gateways."""
    pids = [node.engine_pid for node in gateways.one.nodes.values()]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        batch_id = submit_rows(gateways.one)
        wait_until(lambda: num_at_work(gateways.one) and num_at_work(gateways.two), SECONDS)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    wait_until(lambda: num_ended(gateways.one) and num_ended(gateways.two), SECONDS)
    return batch_id


def num_at_work(gateway: RealFleet) -> float:
    return gateway.server.metric("hocket_offline_rows", state="engine")


def num_ended(gateway: RealFleet) -> float:
    return gateway.server.metric("hocket_offline_rows_ended_total", outcome="completed")


def check_each_row_once(gateway: RealFleet, batch_id: str, number: int = NUM_ROWS) -> None:
    batch = wait_until_ended(client(gateway), batch_id, SECONDS)
    assert batch.status == "completed", batch
    assert (batch.request_counts.completed, batch.request_counts.failed) == (number, 0)
    found = results(client(gateway), batch.output_file_id)
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(number)]
    assert {line["response"]["status_code"] for line in found} == {200}


def test_a_gateway_is_killed_and_the_other_runs_its_rows(gateways: Gateways) -> None:
    one, two = gateways.one, gateways.two
    batch_id = submit_to_both(gateways)
    one.server.process.send_signal(signal.SIGKILL)
    assert client(two).batches.retrieve(batch_id).status == "in_progress"
    check_each_row_once(two, batch_id)
    assert "is gone: its rows are run by others" in two.log()


def test_a_batch_is_cancelled_at_the_other_gateway(gateways: Gateways) -> None:
    one, two = gateways.one, gateways.two
    batch_id = submit_to_both(gateways)
    client(two).batches.cancel(batch_id)
    for gateway in (one, two):
        batch = wait_until_ended(client(gateway), batch_id, SECONDS)
        assert batch.status == "cancelled"
    num_lines = [len(results(client(one), file)) for file in (batch.output_file_id, batch.error_file_id)]
    assert num_lines == [batch.request_counts.completed, NUM_ROWS - batch.request_counts.completed]


@long
def test_a_gateway_that_was_stopped_for_longer_than_its_lease_spoils_nothing(gateways: Gateways) -> None:
    one, two = gateways.one, gateways.two
    batch_id = submit_to_both(gateways)
    one.server.process.send_signal(signal.SIGSTOP)
    try:
        wait_until(lambda: "is gone: its rows are run by others" in two.log(), SECONDS)
    finally:
        one.server.process.send_signal(signal.SIGCONT)
    check_each_row_once(two, batch_id)
    assert "was silent for too long" in one.log()
    another = submit_rows(two)
    check_each_row_once(one, another)
    wait_until(lambda: one.server.metric("hocket_offline_gateways") == 2, SECONDS)

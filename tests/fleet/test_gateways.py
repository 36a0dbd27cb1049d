"""Two gateways over the same nodes and one PostgreSQL database, all real: docs/fleet.md, "Several gateways".

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it.
"""

from __future__ import annotations

import os
import signal
import time
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


class Gateway:
    def __init__(self, fleet: RealFleet, stack: ExitStack) -> None:
        self.fleet, self.server = fleet, fleet.server
        url = f"{self.server.url}/v1"
        self.client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none", timeout=SECONDS, max_retries=0))

    def log(self) -> str:
        return self.fleet.log()


class Gateways:
    """Two of them, and two nodes. The first one sends to the nodes in turn, the second one to the cheapest."""

    def __init__(self, folder: Path, cluster_dir: Path, database: str, stack: ExitStack) -> None:
        self._folder, self._cluster_dir, self._stack = folder, cluster_dir, stack
        shared = ("--share-batches", "--database-url", database, "--data-dir", str(folder / "shared"))
        self._options = (*shared, "--batch-lease-ms", str(LEASE_MS), "--look-ahead-rows", str(LOOK_AHEAD))
        one, two = self._start("one", "--routing", "round_robin"), self._start("two")
        self.nodes = [one.add(name, address=f"{one.address},{two.address}") for name in ("a", "b")]
        for gateway in (one, two):
            gateway.wait_for("a", "up")
            gateway.wait_for("b", "up")
        self.one, self.two = Gateway(one, stack), Gateway(two, stack)

    def _start(self, name: str, *options: str) -> RealFleet:
        folder = self._folder / name
        folder.mkdir()
        return self._stack.enter_context(fleet(folder, self._cluster_dir, *self._options, *options))


@pytest.fixture
def gateways(tmp_path: Path, cluster_dir: Path) -> Iterator[Gateways]:
    if postgresql.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgresql.running() as database, ExitStack() as stack:
        yield Gateways(tmp_path, cluster_dir, database, stack)


def submit_rows(gateway: Gateway, number: int = NUM_ROWS) -> str:
    fields = {"model": "demo", "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    return submit(gateway.client, [row(f"r{i}", {"prompt": f"Story {i}", **fields}) for i in range(number)])


def submit_to_both(gateways: Gateways) -> str:
    """However fast the rows are, they run on both gateways."""
    pids = [node.engine_pid for node in gateways.nodes]
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


def num_at_work(gateway: Gateway) -> float:
    return gateway.server.metric("hocket_offline_rows", state="engine")


def num_ended(gateway: Gateway) -> float:
    return gateway.server.metric("hocket_offline_rows_ended_total", outcome="completed")


def check_each_row_once(gateway: Gateway, batch_id: str, number: int = NUM_ROWS) -> None:
    batch = wait_until_ended(gateway.client, batch_id, SECONDS)
    assert batch.status == "completed", batch
    assert (batch.request_counts.completed, batch.request_counts.failed) == (number, 0)
    found = results(gateway.client, batch.output_file_id)
    assert [line["custom_id"] for line in found] == [f"r{i}" for i in range(number)]
    assert {line["response"]["status_code"] for line in found} == {200}


def cached_share(gateway: Gateway, session: str, text: str) -> float:
    """Of a turn's prompt."""
    fields = {"max_tokens": 4, "temperature": 0, "extra_body": {"session_id": session}}
    usage = gateway.client.completions.create(model="demo", prompt=text, **fields).usage  # type: ignore[call-overload]
    return float(usage.prompt_tokens_details.cached_tokens / usage.prompt_tokens)


def test_turns_of_a_session_find_its_cache_through_either_gateway(gateways: Gateways) -> None:
    text = "It began a long time ago, and nobody who was there remembers. " * 8
    for chat in range(12):
        cached_share(gateways.one, f"chat {chat}", f"{chat}: {text}")
    time.sleep(1.0)  # engines say so four times a second
    shares = [cached_share(gateways.two, f"chat {chat}", f"{chat}: {text} And then?") for chat in range(12)]
    assert sum(share > 0.5 for share in shares) >= 11, shares  # load may move one


def test_a_gateway_is_killed_and_the_other_runs_its_rows(gateways: Gateways) -> None:
    one, two = gateways.one, gateways.two
    batch_id = submit_to_both(gateways)
    one.server.process.send_signal(signal.SIGKILL)
    assert two.client.batches.retrieve(batch_id).status == "in_progress"
    check_each_row_once(two, batch_id)
    assert "is gone: its rows are run by others" in two.log()


def test_a_batch_is_cancelled_at_the_other_gateway(gateways: Gateways) -> None:
    one, two = gateways.one, gateways.two
    batch_id = submit_to_both(gateways)
    two.client.batches.cancel(batch_id)
    for gateway in (one, two):
        batch = wait_until_ended(gateway.client, batch_id, SECONDS)
        assert batch.status == "cancelled"
    num_lines = [len(results(one.client, file)) for file in (batch.output_file_id, batch.error_file_id)]
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

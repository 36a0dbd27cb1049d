"""Two gateways over the same nodes and one PostgreSQL database, all real: docs/fleet.md, "Several gateways".

`make test` runs a short cut; HOCKET_TEST_FLEET=1 (`make test-fleet`) all of it.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
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
KEYS = ("--api-key", "alice", "--api-key", "bob")
NUM_PLACES = 4
SECONDS = 120.0  # for what should take a few: the machine may be busy


class Gateway:
    def __init__(self, fleet: RealFleet, stack: ExitStack) -> None:
        self.fleet, self.server = fleet, fleet.server
        url = f"{self.server.url}/v1"
        self.client = stack.enter_context(openai.OpenAI(base_url=url, api_key="none", timeout=SECONDS, max_retries=0))

    def log(self) -> str:
        return self.fleet.log()


class Gateways:
    """Two of them, over the same nodes. The first one sends to the nodes in turn, the second one to the cheapest."""

    def __init__(
        self,
        folder: Path,
        cluster_dir: Path,
        stack: ExitStack,
        options: tuple[str, ...],
        names: str = "ab",
        *of_nodes: str,
    ) -> None:
        self._folder, self._cluster_dir, self._stack, self._options = folder, cluster_dir, stack, options
        one, two = self._start("one", "--routing", "round_robin"), self._start("two")
        self.nodes = [one.add(name, *of_nodes, address=f"{one.address},{two.address}") for name in names]
        for gateway in (one, two):
            for name in names:
                gateway.wait_for(name, "up")
        self.one, self.two = Gateway(one, stack), Gateway(two, stack)

    def _start(self, name: str, *options: str) -> RealFleet:
        folder = self._folder / name
        folder.mkdir()
        return self._stack.enter_context(fleet(folder, self._cluster_dir, *self._options, *options))


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[tuple[str, ...]]:
    """Options of gateways that share batches."""
    if postgresql.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    with postgresql.running() as database:
        yield ("--share-batches", "--database-url", database, "--data-dir", str(tmp_path / "shared"))


@pytest.fixture
def gateways(tmp_path: Path, cluster_dir: Path, shared: tuple[str, ...]) -> Iterator[Gateways]:
    with ExitStack() as stack:
        options = (*shared, "--batch-lease-ms", str(LEASE_MS), "--look-ahead-rows", str(LOOK_AHEAD))
        yield Gateways(tmp_path, cluster_dir, stack, options)


@pytest.fixture
def sized(tmp_path: Path, cluster_dir: Path, shared: tuple[str, ...]) -> Iterator[Gateways]:
    """They say how many nodes their requests need: at least one, and a spare one."""
    with ExitStack() as stack:
        yield Gateways(tmp_path, cluster_dir, stack, (*shared, "--ttft-target-ms", "1000"), "a")


class Tenant:
    """At one gateway: so many completions at a time, one after the other, until it is told to stop."""

    def __init__(self, gateway: Gateway, name: str, number: int, max_tokens: int, words: int) -> None:
        self.num_tokens = 0  # prompt, and output twice: as the engines count them
        self.num_ended = 0
        self.errors: list[str] = []
        self._url, self._name, self._max_tokens, self._words = gateway.server.url, name, max_tokens, words
        self._numbers = itertools.count()
        self._is_over = False
        self._threads = [threading.Thread(target=self._ask) for _ in range(number)]
        for thread in self._threads:
            thread.start()
            time.sleep(0.01)  # or the line of those who connect is full

    def end(self) -> None:
        self._is_over = True
        for thread in self._threads:
            thread.join(SECONDS)

    def _ask(self) -> None:
        with httpx.Client(headers={"authorization": f"Bearer {self._name}"}, timeout=SECONDS) as client:
            while not self._is_over:
                number = next(self._numbers)
                body = {"prompt": f"{self._name} {number}: " + f"{number} and " * self._words, "model": "demo"}
                body |= {"max_tokens": self._max_tokens, "ignore_eos": True, "temperature": 0}
                try:
                    answer = client.post(f"{self._url}/v1/completions", json=body)
                except httpx.HTTPError as error:
                    self.errors.append(repr(error))
                    return
                if answer.status_code != 200:
                    self.errors.append(str(answer.json()["error"]["code"]))
                    continue
                usage = answer.json()["usage"]
                computed = usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]
                self.num_tokens += computed + 2 * usage["completion_tokens"]
                self.num_ended += 1


@pytest.fixture
def busy(tmp_path: Path, cluster_dir: Path) -> Iterator[Gateways]:
    """One request at a time at each of two nodes."""
    with ExitStack() as stack:
        yield Gateways(tmp_path, cluster_dir, stack, KEYS, "ab", "--max-num-seqs", "1")


def test_two_tenants_at_two_gateways_are_served_alike(busy: Gateways) -> None:
    """One of them asks for ten times as much, both for answers so long that their clients, one process, keep up."""
    tenants = [Tenant(busy.one, "alice", 80, 400, 8), Tenant(busy.two, "bob", 8, 400, 8)]
    try:
        time.sleep(10.0)  # what they may differ by is a number of tokens, not a share
        before = [tenant.num_tokens for tenant in tenants]
        time.sleep(60.0 if WHOLE else 10.0)
        alice, bob = (tenant.num_tokens - so_far for tenant, so_far in zip(tenants, before, strict=True))
    finally:
        for tenant in tenants:
            tenant.end()
    assert [tenant.errors for tenant in tenants] == [[], []]
    ratio = alice / bob
    # A tenth is wanted (docs/fleet.md): engines count for themselves, and a minute has been seen to differ by a fifth.
    assert (0.7 < ratio < 1.4) if WHOLE else (0.5 < ratio < 2.0), (alice, bob)


@pytest.fixture
def full(tmp_path: Path, cluster_dir: Path) -> Iterator[Gateways]:
    """One request at a time at one node, which itself refuses nobody, and four that may wait."""
    with ExitStack() as stack:
        options = (*KEYS, "--max-queue-requests", str(NUM_PLACES))
        yield Gateways(tmp_path, cluster_dir, stack, options, "a", "--max-num-seqs", "1", "--max-ttft-ms", "0")


def status(gateway: Gateway, tenant: str, seconds: float = 1.0) -> int:
    """Of a request; 0: it is waiting after so long, and given up."""
    body = {"model": "demo", "prompt": "Once", "max_tokens": 1000, "ignore_eos": True}
    headers = {"authorization": f"Bearer {tenant}"}
    try:
        return httpx.post(
            f"{gateway.server.url}/v1/completions", json=body, headers=headers, timeout=seconds
        ).status_code
    except httpx.TimeoutException:
        return 0


def test_gateways_have_one_queue_and_shares_of_it(full: Gateways) -> None:
    one, two = full.one, full.two
    alice = Tenant(one, "alice", 1 + NUM_PLACES, 2000, 1)
    try:
        wait_until(lambda: one.server.metric("hocket_requests_waiting") >= NUM_PLACES, SECONDS)
        wait_until(lambda: status(two, "alice") == 429, SECONDS)
        assert status(two, "bob") in (0, 200)  # whoever has filled it keeps nobody else out
        one.server.process.send_signal(signal.SIGKILL)
        wait_until(lambda: status(two, "alice", 3.0) in (0, 200), SECONDS)  # it has left nothing that waits
    finally:
        alice.end()


def leads(gateway: Gateway) -> bool:
    return bool(gateway.fleet.whole_status()["is_leader"])


def desired(gateway: Gateway) -> float:
    """0: it does not say."""
    return gateway.server.metric("hocket_desired_nodes")


def ask(gateway: Gateway) -> None:
    gateway.client.completions.create(model="demo", prompt="Once", max_tokens=2)


def test_one_gateway_says_how_many_nodes_all_need_and_the_next_one_when_it_is_killed(sized: Gateways) -> None:
    both = (sized.one, sized.two)
    wait_until(lambda: sorted(map(leads, both)) == [False, True], SECONDS)
    leader, other = both if leads(sized.one) else both[::-1]
    name = leader.fleet.whole_status()["leader"]
    assert name.endswith(f":{leader.server.process.pid}")
    wait_until(lambda: other.fleet.whole_status()["leader"] == name, SECONDS)
    ask(leader)
    if WHOLE:  # it counts every half minute
        wait_until(lambda: desired(leader) >= 2, SECONDS)
    assert desired(other) == 0
    time.sleep(1.0)  # engines say what has come four times a second
    leader.server.process.send_signal(signal.SIGKILL)
    wait_until(lambda: leads(other), SECONDS)
    wait_until(lambda: desired(other) >= 2, SECONDS)  # for a request that came to the one that is gone
    ask(other)


@long
def test_the_leader_counts_what_comes_to_others_only(sized: Gateways) -> None:
    both = (sized.one, sized.two)
    wait_until(lambda: any(map(leads, both)), SECONDS)
    leader, other = both if leads(sized.one) else both[::-1]
    wait_until(lambda: desired(leader) == 1, SECONDS)
    ask(other)
    wait_until(lambda: desired(leader) >= 2, SECONDS)
    assert desired(other) == 0


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

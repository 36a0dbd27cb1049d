"""Our scheduler class in a `vllm serve` of its own, without our gateway. Needs vLLM: make test-vllm."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from fakes.eventually import wait_until
from fakes.vllm_serve import MODEL, PYTHON, free_port, vllm

pytestmark = pytest.mark.skipif(PYTHON is None, reason="needs HOCKET_TEST_VLLM_PYTHON: make test-vllm")
SETTINGS = {"hocket": {"policy": "hocket", "max_offline_step_ms": 100}}
OPTIONS = ("--scheduling-policy", "priority", "--scheduler-cls", "vllm_engine.scheduler.HocketScheduler")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    port, log = free_port(), tmp_path_factory.mktemp("vllm") / "log"
    with (
        vllm(log, port, *OPTIONS, "--additional-config", json.dumps(SETTINGS)),
        openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as made,
    ):
        yield made


ROWS = 16  # of the server (fakes/vllm_serve.py)


def ask(client: openai.OpenAI, number: int, priority: int) -> str:
    prompt = f"Once upon a time there were {number} birds"
    made = client.completions.create(
        model=str(Path(MODEL)), prompt=prompt, max_tokens=40, temperature=0, extra_body={"priority": priority}
    )
    assert made.usage is not None
    assert made.usage.completion_tokens > 0
    return made.choices[0].text


def test_online_requests_beside_offline_ones_by_priority(client: openai.OpenAI) -> None:
    """More than the server has rows for, so that somebody waits and gives way; texts are as they are alone."""
    alone = [ask(client, number, 0) for number in range(0, 40, 8)]
    with ThreadPoolExecutor(40) as pool:
        crowd = list(pool.map(lambda number: ask(client, number, number % 4), range(40)))
    assert [crowd[number] for number in range(0, 40, 8)] == alone


def test_offline_work_that_has_every_row_keeps_no_online_request_waiting(client: openai.OpenAI) -> None:
    """vLLM's own `priority` puts nobody out who runs: its online requests wait for a row."""

    def write(number: int) -> str:
        made = client.completions.create(
            model=str(Path(MODEL)),
            prompt=f"There were {number} foxes",
            max_tokens=800,
            temperature=0,
            extra_body={"priority": 1, "ignore_eos": True},
        )
        return made.choices[0].text

    with ThreadPoolExecutor(2 * ROWS) as pool:
        jobs = [pool.submit(write, number) for number in range(2 * ROWS)]
        wait_until(lambda: num_running(client) >= ROWS, 60.0)
        texts = [ask(client, number, 0) for number in range(2)]
        num_done = sum(job.done() for job in jobs)
        assert num_done == 0, "they ended first: nothing is shown"
        assert all(texts)
        assert all(len(job.result()) > 0 for job in jobs)


def num_running(client: openai.OpenAI) -> float:
    url = str(client.base_url).removesuffix("/v1/") + "/metrics"
    with urllib.request.urlopen(url) as response:
        lines = response.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:num_requests_running{"))

"""Our scheduler class in a `vllm serve` of its own, without our gateway. Needs vLLM: make test-vllm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

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

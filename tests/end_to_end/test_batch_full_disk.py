"""A disk that fills up while a batch runs: the batch waits, says so, and goes on when there is room again."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from fakes.batch_client import results, row, submit, wait_until_ended
from fakes.eventually import eventually
from fakes.served import serving

NUM_ROWS = 2000  # some seconds of work: the disk must fill before it is done
DISK = "16m"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(disk)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no right to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(filler: Path) -> None:
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(os.urandom(4096))


async def test_batch_outlasts_a_full_disk(tmp_path: Path, small_disk: Path) -> None:
    filler = small_disk / "filler"
    with (
        serving(tmp_path, "--data-dir", str(small_disk / "data")) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client,
    ):
        body = {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
        batch_id = submit(client, [row(f"row-{i}", body) for i in range(NUM_ROWS)])
        await eventually(lambda: server.metric("hocket_offline_rows_ended_total") > 0, seconds=60)
        fill(filler)
        await eventually(lambda: server.metric("hocket_offline_store_blocked") == 1, seconds=60)
        assert client.batches.retrieve(batch_id).status == "in_progress"
        assert client.completions.create(model=server.model, prompt="Hello").choices  # others are served
        filler.unlink()
        batch = wait_until_ended(client, batch_id)
        assert batch.status == "completed"
        lines = results(client, batch.output_file_id)
        assert [line["custom_id"] for line in lines] == [f"row-{i}" for i in range(NUM_ROWS)]
        assert server.metric("hocket_offline_store_blocked") == 0

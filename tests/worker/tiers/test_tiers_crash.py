"""An engine that is killed while it writes to disk: the next one answers with the same tokens, within the bound."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fakes.engine_driver import greedy_requests, make_engine, output_tokens, run
from fakes.gateway_peer import GatewayPeer
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import FinishReason

ROOT = Path(__file__).resolve().parents[3]
PROMPTS = [random.Random(i).choices(range(VOCAB_SIZE), k=100 + i) for i in range(8)]


def settings(disk: Path, disk_bytes: int) -> dict[str, object]:
    return {
        "dtype": "float32",
        "device": "cpu",
        "num_threads": 1,
        "max_num_seqs": 16,
        "cache_memory_bytes": 250 << 10,
        "max_model_len": 320,
        "block_size": 4,
        "restore": "always",
        "host_cache_bytes": 200 << 10,
        "disk_cache_dir": str(disk),
        "disk_cache_bytes": disk_bytes,
    }


def segment_bytes(disk: Path) -> int:
    return sum(path.stat().st_size for path in disk.glob("segment-*"))


def serve_until_killed(socket: Path, config: EngineConfig, num_finals: int) -> None:
    """SIGKILL as soon as so many requests have ended, while the others run and their blocks are written."""
    endpoint = f"ipc://{socket}"
    command = [sys.executable, "-m", "worker", "--endpoint", endpoint, "--config", msgspec.json.encode(config).decode()]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process, GatewayPeer(endpoint) as gateway:
        try:
            gateway.send(*(wire.Submit(request) for request in greedy_requests(PROMPTS, 40)))
            ended: set[int] = set()

            def is_enough(message: wire.ToGateway) -> bool:
                if isinstance(message, wire.Deltas):
                    ended.update(d.request_id for d in message.deltas if d.finish_reason is not FinishReason.NONE)
                return len(ended) >= num_finals

            gateway.wait_for(is_enough)
        finally:
            process.kill()


@pytest.mark.parametrize("disk_bytes", [300 << 10, 4 << 20])
def test_after_a_kill_no_token_is_wrong_and_the_bound_holds(disk_bytes: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "tiny-llama")
    disk = tmp_path / "disk"
    config = EngineConfig(model=str(folder), **settings(disk, disk_bytes))  # type: ignore[arg-type]
    for life, num_finals in enumerate((1, 5)):
        serve_until_killed(tmp_path / f"engine{life}", config, num_finals)
        assert segment_bytes(disk) <= disk_bytes
    requests = greedy_requests(PROMPTS, 40)
    engine = make_engine(folder, **settings(disk, disk_bytes))
    assert engine.stats().disk_bytes > 0
    answers = output_tokens(run(engine, requests))
    assert engine.stats().num_hit_tokens[2] > 0 or disk_bytes < 1 << 20  # then it may have the ends of prompts only
    engine.close()
    assert segment_bytes(disk) <= disk_bytes
    assert answers == output_tokens(run(make_engine(folder, enable_prefix_caching=False), requests))

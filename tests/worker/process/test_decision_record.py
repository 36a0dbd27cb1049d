"""The live engine records what it decides, and the simulator's replay decides the same."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
import pytest

from fakes.engine_driver import GATEWAY, GREEDY, collect, greedy_requests, make_engine, output_tokens, run
from fakes.gateway_peer import GatewayPeer
from fakes.tiny_checkpoints import VOCAB_SIZE, write_checkpoint
from schedcore._core import Scheduler
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, RequestClass, SamplingParams, Targets, TokenDelta
from schedcore.record.recording_scheduler import RecordingScheduler
from schedcore.record.replay import replay
from worker.process.engine import Engine

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


def close_record(engine: Engine) -> None:
    assert isinstance(engine._core, RecordingScheduler)
    engine._core.close()


def random_request(rng: random.Random, request_id: int) -> EngineRequest:
    shared = [7] * rng.choice([0, 20, 40])
    return EngineRequest(
        request_id,
        [*shared, *(rng.randrange(VOCAB_SIZE) for _ in range(rng.randint(1, 30)))],
        max_tokens=rng.randint(1, 40),
        sampling=SamplingParams(temperature=1.0, seed=request_id, num_prompt_logprobs=rng.choice([None, None, 0])),
        stop_token_ids=[rng.randrange(VOCAB_SIZE)],
        request_class=rng.choice([RequestClass.ONLINE, RequestClass.OFFLINE]),
        priority=rng.randint(-1, 1),
        targets=Targets(ttft_ms=rng.choice([None, 200.0]), tpot_ms=rng.choice([None, 20.0])),
        cache_salt=rng.choice(["", "a", "b"]),
        age_ms=rng.random(),
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"policy": "priority", "max_num_seqs": 3, "max_num_batched_tokens": 24},
        {"cache_memory_bytes": 90 << 10, "max_model_len": 96, "block_size": 4},  # too little for all
    ],
)
def test_a_served_history_replays_with_identical_decisions(
    settings: dict[str, object], folder: Path, tmp_path: Path
) -> None:
    engine = make_engine(folder, decision_record=str(tmp_path / "decisions"), **settings)
    rng = random.Random(1)
    deltas: dict[int, list[TokenDelta]] = defaultdict(list)
    for request_id in range(30):
        engine.add(GATEWAY, random_request(rng, request_id))
        for _ in range(rng.randint(0, 3)):
            engine.step()
        if rng.random() < 0.3:
            engine.abort(GATEWAY, rng.randint(0, request_id))
        collect(engine, deltas)
    while engine.step():
        collect(engine, deltas)
    close_record(engine)
    stats, result = engine.stats(), replay(tmp_path / "decisions")
    assert (result.is_identical, result.difference, result.ending) == (True, None, "closed")
    assert result.num_requests == 30
    assert result.num_aborts > 0
    assert (result.num_steps, result.num_output_tokens) == (stats.num_steps, stats.num_output_tokens)
    assert result.num_preemptions == stats.num_preemptions
    assert result.num_preemptions > 0 or "cache_memory_bytes" not in settings


def test_what_is_generated_is_the_same_with_and_without_a_record(folder: Path, tmp_path: Path) -> None:
    requests = greedy_requests([[5, 6, 7], [5, 6, 7, 8] * 10], 12)
    recording = make_engine(folder, decision_record=str(tmp_path / "decisions"))
    plain = make_engine(folder)
    assert type(plain._core) is Scheduler
    assert output_tokens(run(recording, requests)) == output_tokens(run(plain, requests))


def test_a_record_in_the_way_is_noticed_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "decisions").touch()
    with pytest.raises(ValueError, match="exists already: remove it or name another file"):
        make_engine(tmp_path / "no model", decision_record=str(tmp_path / "decisions"))


def test_an_engine_process_closes_its_record_when_it_is_told_to_stop(folder: Path, tmp_path: Path) -> None:
    endpoint, record = f"ipc://{tmp_path / 'engine'}", tmp_path / "decisions"
    config = EngineConfig(
        model=str(folder),
        dtype="float32",
        device="cpu",
        num_threads=1,
        cache_memory_bytes=8 << 20,
        decision_record=str(record),
    )
    command = [sys.executable, "-m", "worker", "--endpoint", endpoint, "--config", msgspec.json.encode(config).decode()]
    with (
        subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process,
        GatewayPeer(endpoint) as gateway,
    ):
        try:
            gateway.send(wire.Hello())
            gateway.wait_for(lambda _: True)
            gateway.send(wire.Submit(EngineRequest(1, [5, 6, 7], 8, GREEDY)))
            gateway.wait_for_final(1)
            gateway.send(wire.Submit(EngineRequest(2, [5, 6, 7], 500, GREEDY)))
            gateway.wait_for(lambda _: bool(gateway.deltas[2]))
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
        finally:
            process.kill()
    result = replay(record)
    assert (result.is_identical, result.ending, result.num_requests) == (True, "closed", 2)
    assert result.num_output_tokens >= 8 + 1

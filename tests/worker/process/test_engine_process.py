"""`python -m worker` as a gateway starts it: a process, a socket, a checkpoint."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.gateway_peer import GatewayPeer
from fakes.tiny_checkpoints import greedy, write_checkpoint
from schedcore.api import wire
from schedcore.api.config import EngineConfig
from schedcore.api.types import EngineRequest, FinishReason, SamplingParams
from worker.process.engine_process import build_engine

ROOT = Path(__file__).resolve().parents[3]
EXIT_SECONDS = 30
PROMPT = [5, 6, 7, 8, 9]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture
def endpoint(tmp_path: Path) -> str:
    return f"ipc://{tmp_path / 'engine'}"


def config_json(folder: Path, **settings: Any) -> bytes:
    defaults = {"dtype": "float32", "num_threads": 1, "cache_memory_bytes": 8 << 20, "served_model_name": "tiny"}
    return msgspec.json.encode(EngineConfig(model=str(folder), **{**defaults, **settings}))


@contextmanager
def started(endpoint: str, config: bytes) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "worker", "--endpoint", endpoint]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(config)
        process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def last_words(process: subprocess.Popen[bytes]) -> str:
    assert process.stderr is not None
    return process.stderr.read().decode()


def request(request_id: int, max_tokens: int) -> EngineRequest:
    return EngineRequest(request_id, PROMPT, max_tokens, SamplingParams(temperature=0.0))


def test_it_says_hello_generates_and_shuts_down(folder: Path, endpoint: str) -> None:
    with started(endpoint, config_json(folder)) as process, GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Hello())
        ready = gateway.wait_for(lambda _: True)
        assert isinstance(ready, wire.Ready)
        assert (ready.info.model, ready.info.dtype, ready.info.device) == ("tiny", "float32", "cpu")
        assert ready.info.max_model_len == 512
        assert 0 < ready.info.startup_seconds < 60

        gateway.send(wire.Submit(request(1, 12)))
        gateway.wait_for_final(1)
        assert gateway.tokens(1) == greedy(folder, [PROMPT], 12)[0]

        gateway.send(wire.Submit(request(2, 500)), wire.Shutdown())
        gateway.wait_for_final(2)
        assert process.wait(EXIT_SECONDS) == 0


def test_sigterm_ends_open_requests_and_exits_cleanly_but_sigint_is_not_for_it(folder: Path, endpoint: str) -> None:
    with started(endpoint, config_json(folder)) as process, GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Hello())
        gateway.wait_for(lambda _: True)
        process.send_signal(signal.SIGINT)
        gateway.send(wire.Submit(request(1, 2)))
        gateway.wait_for_final(1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(EXIT_SECONDS) == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_model_len": 100_000}, "max_model_len 100000 exceeds the checkpoint's 512 positions"),
        ({"model": "no/such/folder/anywhere"}, "neither a directory"),
        ({"latency_profile": "no/such/profile.json"}, "the latency profile no/such/profile.json cannot be read"),
    ],
)
def test_an_engine_that_cannot_start_says_why_to_log_and_gateway(
    folder: Path, endpoint: str, settings: dict[str, Any], words: str
) -> None:
    config = msgspec.json.encode({**msgspec.json.decode(config_json(folder)), **settings})
    with started(endpoint, config) as process, GatewayPeer(endpoint) as gateway:
        gateway.send(wire.Hello())
        fatal = gateway.wait_for(lambda message: isinstance(message, wire.Fatal))
        assert words in str(fatal)
        assert process.wait(EXIT_SECONDS) == 1
        log = last_words(process)
        assert words in log
        assert "Traceback" not in log


@pytest.mark.parametrize("config", [b"", b"{}", b'{"model": "m", "colour": "red"}', b'{"model": "m", "block_size": 0}'])
def test_a_wrong_configuration_is_a_status_of_its_own(config: bytes, endpoint: str) -> None:
    with started(endpoint, config) as process:
        assert process.wait(EXIT_SECONDS) == 2
        assert "the configuration is wrong" in last_words(process)


@pytest.mark.parametrize("device", ["warp", "mps", "cuda:x", ""])
def test_a_device_that_is_none_is_refused(folder: Path, device: str) -> None:
    config = msgspec.json.decode(config_json(folder, device=device), type=EngineConfig)
    with pytest.raises(ValueError, match="device must be auto, cpu, cuda or cuda:N"):
        build_engine(config, time.monotonic())


def test_it_does_not_outlive_its_parent(folder: Path, endpoint: str) -> None:
    """The process in between starts the engine, says its id and waits; then it is killed."""
    parent_code = (
        "import subprocess, sys\n"
        "command = [sys.executable, '-m', 'worker', '--endpoint', sys.argv[1], '--config', sys.argv[2]]\n"
        "engine = subprocess.Popen(command)\n"
        "print(engine.pid, flush=True)\n"
        "engine.wait()\n"
    )
    command = [sys.executable, "-c", parent_code, endpoint, config_json(folder).decode()]
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as parent,
        GatewayPeer(endpoint) as gateway,
    ):
        assert parent.stdout is not None
        engine = os.pidfd_open(int(parent.stdout.readline()))
        gateway.send(wire.Hello())
        gateway.wait_for(lambda _: True)
        gateway.send(wire.Submit(request(1, 400)))
        gateway.wait_for(lambda _: bool(gateway.deltas[1]))
        parent.kill()
        gateway.wait_for_final(1)
        assert gateway.deltas[1][-1].finish_reason in (FinishReason.ABORT, FinishReason.LENGTH)
        assert has_exited(engine), "the engine outlives its parent"
    assert not Path(endpoint.removeprefix("ipc://")).parent.exists(), "nobody is left to remove the socket's folder"


def has_exited(pid_fd: int) -> bool:
    """Waits for the process; it is no child of ours."""
    with open(pid_fd) as end:
        return bool(select.select([end], [], [], EXIT_SECONDS)[0])

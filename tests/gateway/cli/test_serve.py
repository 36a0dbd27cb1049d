"""`hocket serve` as a process, with a fake worker as its engine."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fakes.byte_tokenizer import write_byte_checkpoint
from gateway.cli import main as hocket

ROOT = Path(__file__).resolve().parents[3]
URL = re.compile(r"http://\S+:\d+")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_checkpoint(tmp_path_factory.mktemp("models") / "bytes")


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    return {name: value for name, value in os.environ.items() if name != "HOCKET_API_KEY"} | {"PYTHONPATH": path} | more


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Without files and batches unless a data directory is named: the user's own is none of a test's business."""
    offline = () if {"--data-dir", "--offline"} & set(arguments) else ("--no-offline",)
    command = [sys.executable, "-m", "fakes.fake_serve", *arguments, *offline]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(**variables))


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def url_of(process: subprocess.Popen[str]) -> str:
    """Reads what the server says until it is ready."""
    assert process.stderr is not None
    said = ""
    for line in process.stderr:
        said += line
        if "chat in a browser" in line and (match := URL.search(line)):
            return match[0]
    pytest.fail(said)


def failure(*arguments: str, **variables: str) -> tuple[int, str]:
    with start(*arguments, **variables) as process:
        _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def test_server_says_where_it_is_and_ends_on_a_signal(model: Path, processes: list[subprocess.Popen[str]]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start(str(model), "--port", "0")
        processes.append(process)
        with urllib.request.urlopen(url_of(process) + "/health") as response:
            assert json.load(response)["model"] == "bytes"
        engine = psutil.Process(process.pid).children()[0]
        process.send_signal(number)
        assert process.wait(timeout=30) == 0
        assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE


def test_engine_ends_when_the_server_is_killed(model: Path, processes: list[subprocess.Popen[str]]) -> None:
    process = start(str(model), "--port", "0")
    processes.append(process)
    url_of(process)
    engine = psutil.Process(process.pid).children()[0]
    process.kill()
    engine.wait(timeout=30)
    assert not engine.is_running()


def test_keys_may_come_from_the_environment(model: Path, processes: list[subprocess.Popen[str]]) -> None:
    process = start(str(model), "--port", "0", HOCKET_API_KEY="one, two")
    processes.append(process)
    request = urllib.request.Request(url_of(process) + "/v1/models", headers={"Authorization": "Bearer two"})
    with urllib.request.urlopen(request) as response:
        assert response.status == 200
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request.full_url)


def test_wrong_model_is_one_clear_line(tmp_path: Path) -> None:
    status, errors = failure(str(tmp_path / "nothing"))
    assert status == 1
    assert errors.startswith("hocket serve: ")
    assert "nothing" in errors
    assert errors.count("\n") == 1


def test_directory_without_tokenizer_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    status, errors = failure(str(tmp_path), "--port", "0")
    assert status == 1
    assert errors.count("\n") == 1
    assert "tokenizer.json" in errors


def test_taken_port_is_one_clear_line(model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, errors = failure(str(model), "--port", str(port))
    assert status == 1
    assert errors == f"hocket serve: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize(("mode", "reason"), [("exit", "exited with status 3"), ("fatal", "no such device")])
def test_engine_that_cannot_start_ends_the_server(model: Path, mode: str, reason: str) -> None:
    status, errors = failure(str(model), "--port", "0", FAKE_WORKER_MODE=mode)
    assert status == 1
    assert reason in errors.splitlines()[-1]
    assert "Traceback" not in errors


def test_wrong_option_is_named(model: Path, tmp_path: Path) -> None:
    assert failure(str(model), "--port", "70000") == (2, "hocket serve: port must be between 0 and 65535\n")
    (tmp_path / "c.toml").write_text("nonsense = 1")
    status, errors = failure("--config", str(tmp_path / "c.toml"))
    assert status == 2
    assert "no option 'nonsense'" in errors


def test_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        hocket.main(["--help"])
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in hocket.COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert hocket.main(["version"]) == 0
    assert re.fullmatch(r"\d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_command_line_needs_neither_torch_nor_server_to_show_help() -> None:
    code = "import sys; from gateway.cli.main import main\ntry: main(['--help'])\nfinally: print(sorted(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=ROOT)
    assert "gateway.cli.main" in run.stdout
    assert not {"'aiohttp'", "'torch'", "'rich'"} & set(re.findall(r"'\w+'", run.stdout))


def test_adapters_need_an_engine_that_has_them(model: Path) -> None:
    status, errors = failure(str(model), "--lora-modules", "sql=/adapters/sql")
    assert status == 2
    assert "--lora-modules needs --engine vllm" in errors
    status, errors = failure(str(model), "--engine", "vllm", "--lora-modules", f"{model.name}=/adapters/sql")
    assert status == 2
    assert "an adapter has the model's own name" in errors


def test_data_directory_of_another_gateway_is_refused(
    model: Path, processes: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    arguments = (str(model), "--port", "0", "--data-dir", str(tmp_path / "data"))
    processes.append(start(*arguments))
    url_of(processes[0])
    processes.append(start(*arguments))
    assert processes[1].wait() == 1
    assert processes[1].stderr is not None
    assert "another gateway uses the data directory" in processes[1].stderr.read()
    processes[0].kill()
    processes[0].wait()
    processes.append(start(*arguments))
    assert url_of(processes[2])


def test_second_server_of_a_user_serves_without_batches(
    model: Path, processes: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    statuses = []
    for _ in range(2):
        processes.append(start(str(model), "--port", "0", "--offline", XDG_DATA_HOME=str(tmp_path)))
        try:
            with urllib.request.urlopen(url_of(processes[-1]) + "/v1/batches") as response:
                statuses.append(response.status)
        except urllib.error.HTTPError as error:
            statuses.append(error.code)
    assert statuses == [200, 404]
    assert (tmp_path / "hocket" / "store.db").exists()


def test_trouble_with_the_data_directory_is_not_said_to_be_the_ports(
    model: Path, processes: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir(mode=0o700)
    (tmp_path / "data" / "store.db").mkdir()
    processes.append(start(str(model), "--port", "0", "--data-dir", str(tmp_path / "data")))
    assert processes[0].wait() == 1
    assert processes[0].stderr is not None
    said = processes[0].stderr.read()
    assert said.startswith(f"hocket serve: the data directory {tmp_path / 'data'} cannot be used: ")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("url", ["mysql://host/name", "nonsense", "postgresql://127.0.0.1:1/nothing"])
def test_database_that_cannot_be_used_is_named(
    model: Path, processes: list[subprocess.Popen[str]], tmp_path: Path, url: str
) -> None:
    processes.append(start(str(model), "--port", "0", "--data-dir", str(tmp_path), "--database-url", url))
    assert processes[0].wait() == 1
    assert processes[0].stderr is not None
    said = processes[0].stderr.read()
    assert said.startswith("hocket serve: ")
    assert len(said.splitlines()) == 1

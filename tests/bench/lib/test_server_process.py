"""Servers under test are started, waited for, measured and gone afterwards."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.lib.server import server_process
from bench.lib.server.cpu_use import read_cpu_use
from bench.lib.server.server_process import ServerFailedError, ServerProcess, is_healthy

ROOT = Path(__file__).resolve().parents[3]
HEALTH_PROCESS = ROOT / "tests" / "fakes" / "health_process.py"
COMMAND = f"GREETING={{model}} {shlex.quote(sys.executable)} {shlex.quote(str(HEALTH_PROCESS))} {{port}}"


def test_server_is_healthy_inside_and_gone_outside(tmp_path: Path) -> None:
    with ServerProcess("fake", COMMAND, "hello", tmp_path / "log") as server:
        assert is_healthy(server.base_url)
        family = server.processes()
        assert len(family) >= 2, "the child counts too"
        assert server.rss_bytes() > max(process.memory_info().rss for process in family)
        assert server.startup_seconds > 0
        assert server.metrics_text() == "up 1\n"
        assert "GREETING=hello" in server.command
    assert not is_healthy(server.base_url)
    assert not any(process.is_running() for process in family)
    assert "warming up" in (tmp_path / "log").read_text()


@pytest.mark.parametrize("is_repeated", [False, True], ids=["once", "as timeout does, and more"])
def test_a_bench_that_is_told_to_end_leaves_no_server(tmp_path: Path, is_repeated: bool) -> None:
    script = f"""
from pathlib import Path
from bench.lib.server.server_process import ServerProcess, end_with_signals
end_with_signals()
with ServerProcess("fake", {COMMAND!r}, "", Path({str(tmp_path / "log")!r})) as server:
    print(server.base_url, flush=True)
    input()
"""
    pipe = subprocess.PIPE
    bench = subprocess.Popen([sys.executable, "-c", script], stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
    assert bench.stdout is not None
    url = bench.stdout.readline().strip()
    assert is_healthy(url)
    bench.terminate()
    while is_repeated and bench.poll() is None:
        bench.terminate()
    bench.communicate()
    assert bench.returncode == 128 + signal.SIGTERM
    assert not is_healthy(url)


def test_cpu_time_of_the_server_is_not_noise(tmp_path: Path) -> None:
    with ServerProcess("fake", COMMAND, "hello", tmp_path / "log") as server:
        before = read_cpu_use(server)
        assert is_healthy(server.base_url)
        use = read_cpu_use(server).since(before)
    assert before.server > 0
    assert use.wall > 0
    assert use.server >= 0
    assert use.noise_ratio == max(0.0, use.busy - use.server - use.client) / use.wall


def test_a_server_that_still_works_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_process, "IDLE_SECONDS", 0.01)
    seconds = iter([0.0, 1.0, 2.0, *[2.5] * 9])
    with ServerProcess("fake", COMMAND, "hello", tmp_path / "log") as server:
        monkeypatch.setattr(server, "cpu_seconds", lambda: next(seconds))
        server.wait_until_idle()
        assert len(list(seconds)) == 7  # asked until two answers were alike
        monkeypatch.setattr(server, "cpu_seconds", time.perf_counter)
        begin = time.perf_counter()
        server.wait_until_idle(timeout_seconds=0.05)
        assert time.perf_counter() - begin >= 0.05, "never at rest"


def test_server_that_ends_early_is_reported_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerFailedError, match=r"fake ended with 3\nno such model"):
        ServerProcess("fake", "echo no such model; exit 3", "", tmp_path / "log").__enter__()


def test_server_that_never_becomes_healthy_is_stopped(tmp_path: Path) -> None:
    server = ServerProcess("fake", "exec tail -f /dev/null", "", tmp_path / "log", timeout_seconds=0.2)
    with pytest.raises(ServerFailedError, match="not healthy"):
        server.__enter__()
    assert server.processes() == []

"""A gateway and nodes in processes of their own, with the demo model, for tests that kill, stop and cut."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from fakes.eventually import wait_until
from fakes.served import ROOT, Server

START_SECONDS = 120.0  # generous: a deadline, not a measurement
_FLEET = re.compile(r"hocket node --gateways (\S+)")
_URL = re.compile(r"chat in a browser: (http://\S+:\d+)/")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def start(log_file: Path, *arguments: str) -> subprocess.Popen[bytes]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "tests")))
    variables = {key: value for key, value in os.environ.items() if key != "HOCKET_API_KEY"}
    variables |= {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    with log_file.open("ab") as log:
        command = [sys.executable, "-m", "gateway.cli.main", *arguments]
        return subprocess.Popen(command, stdout=log, stderr=log, env=variables, cwd=ROOT)


class RealNode:
    def __init__(self, name: str, folder: Path, arguments: tuple[str, ...]) -> None:
        self.name, self._folder, self._arguments = name, folder, arguments
        self.log_file = folder / f"{name}.log"
        self.manager = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return start(self.log_file, "node", "--name", self.name, "--run-dir", str(self._folder), *self._arguments)

    @property
    def engine_pid(self) -> int:
        return int(json.loads((self._folder / "engine.json").read_text())["pid"])

    def start_manager(self) -> None:
        self.manager = self._start()

    def kill_manager(self) -> None:
        self.manager.kill()
        self.manager.wait()

    def end(self) -> None:
        """Whatever is left of it."""
        self.kill_manager()
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(self.engine_pid, signal.SIGKILL)


class RealFleet:
    def __init__(self, folder: Path, cluster_dir: Path | None, *gateway_options: str, model: str = "demo") -> None:
        self.folder, self._model = folder, model
        self._security = () if cluster_dir is None else ("--cluster-dir", str(cluster_dir))
        self.nodes: dict[str, RealNode] = {}
        self.log_file = folder / "gateway.log"
        options = ("--port", "0", "--data-dir", str(folder / "data"), "--no-access-log", *gateway_options)
        self.api_key = next((key for flag, key in pairwise(gateway_options) if flag == "--api-key"), "")
        listen = ("--fleet-listen", "127.0.0.1:0", *self._security)
        self._gateway = start(self.log_file, "serve", model, *options, *listen)
        self.address = self._from_log(_FLEET)

    def add(self, name: str, *options: str, address: str = "", folder: str = "") -> RealNode:
        run_dir = self.folder / (folder or name)
        run_dir.mkdir(exist_ok=True)
        fixed = ("--gateways", address or self.address, "--model", self._model, "--dtype", "float32", *self._security)
        node = RealNode(name, run_dir, (*fixed, *options))
        self.nodes[folder or name] = node
        return node

    @property
    def server(self) -> Server:
        """Once a node has come."""
        return Server(self._from_log(_URL), self._model, self._gateway, self.log_file)

    def status(self) -> dict[str, dict[str, Any]]:
        return {node["name"]: node for node in self.whole_status()["nodes"]}

    def whole_status(self) -> dict[str, Any]:
        asked = urllib.request.Request(f"{self.server.url}/fleet", headers={"Authorization": f"Bearer {self.api_key}"})
        with urllib.request.urlopen(asked) as response:
            found: dict[str, Any] = json.loads(response.read())
            return found

    def wait_for(self, name: str, condition: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        wait_until(lambda: self.status().get(name, {}).get("condition") == condition, seconds)
        return self.status()[name]

    def log(self) -> str:
        return self.log_file.read_text()

    def end(self) -> None:
        for node in self.nodes.values():
            node.end()
        self._gateway.terminate()
        try:
            self._gateway.wait(timeout=START_SECONDS)
        except subprocess.TimeoutExpired:
            self._gateway.kill()
            self._gateway.wait()

    def _from_log(self, pattern: re.Pattern[str]) -> str:
        def found() -> bool:
            assert self._gateway.poll() is None, self.log()
            return pattern.search(self.log()) is not None

        wait_until(found, START_SECONDS)
        match = pattern.search(self.log())
        assert match is not None
        return match[1]


class Relay:
    """A cable: what goes through it waits while it is cut, as TCP would have it wait."""

    def __init__(self, host: str, port: int, target: tuple[str, int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._target = target
        self._whole = asyncio.Event()
        self._whole.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, host, port), self._loop
        ).result(10)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def cut(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.clear)

    def mend(self) -> None:
        self._loop.call_soon_threadsafe(self._whole.set)

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            with contextlib.suppress(OSError):
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pump(reader, far_writer))
                    group.create_task(self._pump(far_reader, writer))
        except* OSError:
            pass
        finally:
            for end in (writer, far_writer):
                end.transport.abort()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(1 << 16):
            await self._whole.wait()
            sink.write(data)
            await sink.drain()
        await self._whole.wait()
        raise ConnectionResetError  # both directions end


@contextlib.contextmanager
def fleet(folder: Path, cluster_dir: Path | None, *gateway_options: str, model: str = "demo") -> Iterator[RealFleet]:
    running = RealFleet(folder, cluster_dir, *gateway_options, model=model)
    try:
        yield running
    finally:
        running.end()


def ask(url: str, **fields: object) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers of a completion."""
    body = json.dumps({"prompt": "Once", "temperature": 0, "max_tokens": 4} | fields).encode()
    asked = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(asked, timeout=START_SECONDS) as answer:
            return answer.status, json.loads(answer.read()), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


class Streams:
    """Streamed completions, each in a thread: what came, and how it ended."""

    def __init__(self, url: str, number: int, max_tokens: int) -> None:
        self.texts: list[list[str]] = [[] for _ in range(number)]
        self.ends: list[list[str]] = [[] for _ in range(number)]  # finish reasons and errors; one each is right
        self._url, self._max_tokens = url, max_tokens
        self._threads = [threading.Thread(target=self._read, args=(i,)) for i in range(number)]
        for thread in self._threads:
            thread.start()

    @property
    def have_begun(self) -> bool:
        """Or have ended: beside a busy machine a stream's tokens may come in a few events."""
        return all(text or end for text, end in zip(self.texts, self.ends, strict=True))

    def wait(self) -> None:
        for thread in self._threads:
            thread.join(START_SECONDS)
        assert not any(thread.is_alive() for thread in self._threads)

    def _read(self, i: int) -> None:
        body = {
            "prompt": f"Story {i}",
            "temperature": i % 2,
            "seed": i,
            "max_tokens": self._max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(f"{self._url}/v1/completions", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(asked, timeout=START_SECONDS) as answer:
                for line in answer:
                    self._note(i, line.decode().strip())
        except urllib.error.HTTPError as error:
            self.ends[i].append(f"error {error.code}")
        except (OSError, http.client.HTTPException):  # the gateway is gone
            self.ends[i].append("cut off")

    def _note(self, i: int, line: str) -> None:
        if not line.startswith("data: ") or line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.ends[i].append(f"error {event['error'].get('code')}")
            return
        for choice in event.get("choices", []):
            if choice["text"]:
                self.texts[i].append(choice["text"])
            if choice["finish_reason"]:
                self.ends[i].append(choice["finish_reason"])

"""A fleet whose nodes Ray keeps running: three raylets on this machine, real nodes, a real gateway.

`make test-ray`, in an environment that has Ray; its machines have two GPUs each on paper only, and engines compute on
CPU. Tests go on where the one before ended: a cluster takes ten seconds to start.
"""

from __future__ import annotations

import http.server
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from fakes.eventually import wait_until
from fakes.real_fleet import RealFleet, Streams, ask, fleet
from fakes.served import ROOT
from gateway.config.environment import ray_variables

HAS_RAY = importlib.util.find_spec("ray") is not None
pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not HAS_RAY, reason="Ray is not installed here: make test-ray"),
]
SECONDS = 120.0  # generous: deadlines, not measurements
MACHINES = ("m1", "m2", "m3")
HOST = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's address outside


class OnRay:
    def __init__(self, folder: Path, cluster: Any, gateway: RealFleet) -> None:
        self.folder, self.cluster, self.gateway = folder, cluster, gateway
        self.machines: dict[str, Any] = {}

    def hocket(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gateway.cli.main", "fleet", *arguments, "--ray", self.cluster.address]
        return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False)

    def file(self, more: str = "", nodes: int = 3) -> str:
        path = self.folder / "fleet.toml"
        path.write_text(f"""
            name = "chat"
            gateways = ["{self.gateway.address}"]
            nodes = {nodes}
            run-dir = "{self.folder / "run"}"
            [resources]
            gpus = 1
            cpus = 1
            [node]
            dtype = "float32"
            listen = "127.0.0.1:0"
            {more}""")
        return str(path)

    def nodes(self) -> dict[str, Any]:
        said = self.hocket("status", "--fleet", "chat", "--json")
        assert said.returncode == 0, said.stderr
        nodes: dict[str, Any] = json.loads(said.stdout)["nodes"]
        return nodes

    def wait_for_nodes(self, is_so: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def look() -> bool:
            found.clear()
            found.update(self.nodes())
            return None not in found.values() and bool(is_so(found))

        wait_until(look, SECONDS)
        return found


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    folder = tmp_path_factory.mktemp("r")
    variables = ray_variables(str(folder / "gcs")) | {"RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        from ray.cluster_utils import Cluster  # it reads them when it is imported

        fixed = {"num_cpus": 3, "num_gpus": 3, "node_ip_address": HOST, "object_store_memory": 80 << 20}
        cluster = Cluster()
        try:
            with fleet(folder, None, "--routing", "least_loaded") as gateway:
                running = OnRay(folder, cluster, gateway)
                for machine in MACHINES:
                    running.machines[machine] = cluster.add_node(node_name=machine, include_dashboard=False, **fixed)
                yield running
        finally:
            cluster.shutdown()  # first: its actors start again what ends
            end_nodes(folder)


def end_nodes(folder: Path) -> None:
    """What tests that failed have left."""
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder / "run") in argument for argument in process.info["cmdline"] or ()):
            process.kill()


def test_up_starts_the_nodes_and_status_names_them(on_ray: OnRay) -> None:
    started = on_ray.hocket("up", on_ray.file())
    assert started.returncode == 0, started.stderr
    said = on_ray.hocket("status", "--fleet", "chat")
    assert all(name in said.stdout for name in ("chat-1", "chat-2", "chat-3")), said.stdout
    nodes = on_ray.nodes()
    assert all(node["is_ready"] and node["keeping"] == "running" for node in nodes.values())
    for name in nodes:
        on_ray.gateway.wait_for(name, "up")
    assert ask(on_ray.gateway.server.url)[0] == 200


def test_a_node_has_the_devices_that_ray_gave_it_and_no_others(on_ray: OnRay) -> None:
    by_machine: dict[str, set[str]] = {}
    nodes = on_ray.nodes()
    for node in nodes.values():
        variables = psutil.Process(node["pid"]).environ()
        assert variables["OMP_NUM_THREADS"] == "1"
        by_machine.setdefault(node["machine"], set()).add(variables["CUDA_VISIBLE_DEVICES"])
    assert sum(map(len, by_machine.values())) == len(nodes)


def test_a_killed_actor_comes_back_and_its_engine_is_adopted(on_ray: OnRay) -> None:
    before, seen = on_ray.nodes()["chat-1"], on_ray.gateway.status()["chat-1"]
    streams = Streams(on_ray.gateway.server.url, 4, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    os.kill(psutil.Process(before["pid"]).ppid(), signal.SIGKILL)
    after = on_ray.wait_for_nodes(lambda nodes: nodes["chat-1"]["is_adopted"] and nodes["chat-1"]["is_ready"])["chat-1"]
    streams.wait()
    assert streams.ends == [["length"]] * 4
    assert after["engine_pid"] == before["engine_pid"]
    assert after["pid"] != before["pid"]
    assert on_ray.gateway.wait_for("chat-1", "up")["incarnation"] == seen["incarnation"]


def test_a_lost_machine_is_made_up_for_elsewhere_and_nothing_serves_twice(on_ray: OnRay) -> None:
    before = on_ray.nodes()
    lost = next(node["machine"] for node in before.values() if node["machine"] != "m1")  # m1 has the head
    gone = {name: node for name, node in before.items() if node["machine"] == lost}
    on_ray.cluster.remove_node(on_ray.machines.pop(lost), allow_graceful=False)
    on_ray.wait_for_nodes(
        lambda nodes: len(nodes) == 3 and all(node["machine"] != lost and node["is_ready"] for node in nodes.values())
    )
    for name, node in gone.items():
        wait_until(lambda pid=node["engine_pid"]: not psutil.pid_exists(pid), SECONDS)
        assert on_ray.gateway.wait_for(name, "up")["pid"] == on_ray.nodes()[name]["engine_pid"]
    assert len(on_ray.gateway.status()) == 3
    assert ask(on_ray.gateway.server.url)[0] == 200


def test_a_changed_file_replaces_nodes_one_by_one_and_nobody_notices(on_ray: OnRay) -> None:
    before = on_ray.nodes()
    with asking(on_ray.gateway.server.url) as statuses:
        changed = on_ray.hocket("up", on_ray.file("max-num-seqs = 77"))
    assert changed.returncode == 0, changed.stderr
    after = on_ray.nodes()
    assert all(after[name]["engine_pid"] != before[name]["engine_pid"] for name in after)
    assert set(statuses) == {200}


@contextmanager
def asking(url: str) -> Iterator[list[int]]:
    """The statuses of requests one after the other, meanwhile."""
    statuses: list[int] = []
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            statuses.append(ask(url)[0])

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield statuses
    finally:
        stop.set()
        thread.join()


def test_scaled_down_nodes_are_drained_and_leave(on_ray: OnRay) -> None:
    before = on_ray.nodes()
    scaled = on_ray.hocket("scale", "2", "--fleet", "chat")
    assert scaled.returncode == 0, scaled.stderr
    assert set(on_ray.nodes()) == {"chat-1", "chat-2"}
    assert not psutil.pid_exists(before["chat-3"]["engine_pid"])
    assert "it has left" in on_ray.gateway.wait_for("chat-3", "gone")["last_death"]


def test_without_rays_head_streams_go_on_and_when_it_is_back_the_fleet_scales(on_ray: OnRay) -> None:
    streams = Streams(on_ray.gateway.server.url, 4, 1500)
    wait_until(lambda: streams.have_begun, SECONDS)
    head = on_ray.cluster.head_node
    head.kill_gcs_server()
    streams.wait()
    assert streams.ends == [["length"]] * 4
    assert ask(on_ray.gateway.server.url)[0] == 200
    head.start_gcs_server()
    scaled = on_ray.hocket("scale", "3", "--fleet", "chat")
    assert scaled.returncode == 0, scaled.stderr
    on_ray.gateway.wait_for("chat-3", "up")


def test_the_number_of_nodes_follows_the_gateways_gauge(on_ray: OnRay) -> None:
    with metrics("hocket_desired_nodes 1\n") as url:
        scaling = f'[scaling]\nmetrics-url = "{url}"\nmax-nodes = 3\ndown-after-seconds = 0'
        changed = on_ray.hocket("up", on_ray.file(scaling))
        assert changed.returncode == 0, changed.stderr
        assert set(on_ray.wait_for_nodes(lambda nodes: len(nodes) == 1)) == {"chat-1"}
        refused = on_ray.hocket("scale", "2", "--fleet", "chat")
        assert refused.returncode == 1
        assert "follows" in refused.stderr


@contextmanager
def metrics(text: str) -> Iterator[str]:
    """Of a gateway that wants what it says."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/metrics"
        finally:
            server.shutdown()


def test_down_ends_everything(on_ray: OnRay) -> None:
    engines = [node["engine_pid"] for node in on_ray.nodes().values()]
    ended = on_ray.hocket("down", "--fleet", "chat")
    assert ended.returncode == 0, ended.stderr
    assert not [pid for pid in engines if psutil.pid_exists(pid)]
    again = on_ray.hocket("status", "--fleet", "chat")
    assert again.returncode == 1
    assert "no fleet chat runs there" in again.stderr


def test_no_cluster_is_said_in_one_line() -> None:
    command = [sys.executable, "-m", "gateway.cli.main", "fleet", "status", "--ray", f"{HOST}:1"]
    said = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False)
    assert said.returncode == 1
    assert said.stderr.splitlines()[-1].startswith(f"hocket fleet: nobody listens at {HOST}:1")

"""Units, container files, the compose file and KubeRay's manifest: their commands are what this version takes, and
whoever has the tool says that the form is right. `make test-deploy` has hadolint and Kubernetes' schemas; systemd's own
is taken where the system has one.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fakes.served import ROOT
from gateway.cli import fleet, node, serve
from gateway.cli.clusters.on_ray import checked_fleet_file
from gateway.cli.parser import Parser
from gateway.config.environment import ray_variables

TOOLS = os.environ.get("HOCKET_TEST_DEPLOY_TOOLS", "")
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
CONTAINERS = ROOT / "deploy/containers"
COMPOSE = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
KUBERAY = ROOT / "deploy/kuberay/raycluster.yaml"
needs_tools = pytest.mark.skipif(not TOOLS, reason="HOCKET_TEST_DEPLOY_TOOLS: make test-deploy")


def understood(command: list[str]) -> dict[str, Any]:
    """What `hocket COMMAND ...` makes of its flags; exits where it makes nothing of them."""
    name, *arguments = command
    parser = Parser(prog=name)
    add = {"serve": serve.add_options, "node": node.add_arguments, "fleet": fleet.add_arguments}[name]
    add(parser)
    return vars(parser.parse_args(arguments))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_starts_what_this_version_takes(unit: Path) -> None:
    (command,) = re.findall(r"(?m)^ExecStart=/opt/hocket/bin/hocket (.*) \$FLAGS$", unit.read_text())
    found = understood(shlex.split(command.replace("%i", "0").replace("%H", "machine")))
    assert found["cluster_dir"] == "/etc/hocket"
    (example,) = re.findall(r"(?m)^#   FLAGS=(.*)$", unit.read_text())
    assert understood([shlex.split(command)[0], *shlex.split(example)])["model"] == "/models/qwen3-8b"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_nothing_wrong_with_a_unit(unit: Path, tmp_path: Path) -> None:
    """Its program and its user are of this machine: units name those of the machine that they are for."""
    text = unit.read_text().replace("/opt/hocket/bin/hocket", sys.executable).replace("User=hocket", "User=root")
    copy = tmp_path / unit.name.replace("@.", "@0.")
    copy.write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(copy)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    copy.write_text(text.replace("KillMode=", "KillModus=").replace("Restart=", "Restart=perhaps-"))
    assert "KillModus" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


def test_a_node_that_was_drained_or_superseded_is_not_started_again_by_systemd() -> None:
    text = (ROOT / "deploy/systemd/hocket-node@.service").read_text()
    assert "Restart=on-failure\n" in text  # 0: it was drained
    assert "RestartPreventExitStatus=3\n" in text
    assert "KillMode=process\n" in text  # its engine is for the next manager
    (drain_ms,) = re.findall(r"--drain-timeout-ms (\d+)", text)
    (stop_seconds,) = re.findall(r"TimeoutStopSec=(\d+)", text)
    assert int(stop_seconds) > int(drain_ms) / 1000


@needs_tools
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_hadolint_finds_nothing_wrong_with_a_container_file(kind: str) -> None:
    command = [f"{TOOLS}/hadolint", "--failure-threshold=style", str(CONTAINERS / f"Containerfile.{kind}")]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_what_a_container_file_copies_is_there_and_not_left_out(kind: str) -> None:
    text = (CONTAINERS / f"Containerfile.{kind}").read_text()
    copied = [path for line in re.findall(r"(?m)^COPY (?!--from)(.*)$", text) for path in line.split()[:-1]]
    copied = [path for path in copied if not path.startswith("--")]
    assert len(copied) > 8
    kept = set(re.findall(r"(?m)^!(.*)$", (ROOT / ".dockerignore").read_text()))
    for path in copied:
        assert (ROOT / path).exists(), path
        assert path in kept or Path(path).parent.as_posix() in kept, path
    assert "USER 10001:10001" in text
    assert text.count("\nFROM ") == 2


def test_the_packages_of_the_wheel_are_copied() -> None:
    text = (CONTAINERS / "Containerfile.cpu").read_text()
    for package in ("gateway", "schedcore", "vllm_engine", "worker"):
        assert f"COPY {package} {package}" in text


@pytest.mark.parametrize("running", ["node", "gateway"])
def test_the_health_check_asks_the_engine_of_a_node_and_the_gateway_itself(running: str) -> None:
    said = subprocess.run(["sh", "-n", str(CONTAINERS / "healthcheck")], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr) == (0, "")
    text = (CONTAINERS / "healthcheck").read_text()
    assert {"node": "/run/hocket/engine.json", "gateway": "http://127.0.0.1:8000/health"}[running] in text


def test_the_compose_file_has_a_gateway_and_three_nodes_that_find_it() -> None:
    services = COMPOSE["services"]
    nodes = {name: service for name, service in services.items() if service.get("command", [""])[0] == "node"}
    assert len(nodes) == 3
    served = understood(services["gateway"]["command"])
    for name, service in nodes.items():
        found = understood(service["command"])
        assert (found["name"], found["advertise"]) == (name, name)
        host, port = found["gateways"][0].split(":")
        assert host == "gateway"
        assert served["fleet_listen"].endswith(f":{port}")
        assert found["cluster_dir"] == served["cluster_dir"]
        assert service["depends_on"].keys() <= services.keys()
    volumes = {volume.split(":")[0] for service in services.values() for volume in service.get("volumes", [])}
    assert volumes == COMPOSE["volumes"].keys()
    assert (CONTAINERS / services["gateway"]["build"]["context"] / services["gateway"]["build"]["dockerfile"]).exists()


def test_kuberays_fleet_file_and_commands_are_what_this_version_takes(tmp_path: Path) -> None:
    documents = {document["kind"]: document for document in yaml.safe_load_all(KUBERAY.read_text())}
    (tmp_path / "fleet.toml").write_text(documents["ConfigMap"]["data"]["fleet.toml"])
    file = checked_fleet_file(tmp_path / "fleet.toml")
    (up,) = documents["Job"]["spec"]["template"]["spec"]["containers"]
    assert understood(up["args"])["ray"] == "hocket-head-svc:6379"
    cluster = documents["RayCluster"]["spec"]
    assert cluster["authOptions"]["mode"] == "token"
    (group,) = cluster["workerGroupSpecs"]
    for pod in (cluster["headGroupSpec"]["template"]["spec"], group["template"]["spec"]):
        (container,) = pod["containers"]
        variables = {variable["name"]: variable["value"] for variable in container["env"]}
        assert variables.items() <= ray_variables(None).items()
        assert {mount["mountPath"] for mount in container["volumeMounts"]} == {file.cluster_dir, file.run_dir}
    assert group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"] == f"{file.resources.cpus:g}"


@needs_tools
def test_kubernetes_takes_what_is_its_own_in_kuberays_manifest(tmp_path: Path) -> None:
    documents = [d for d in yaml.safe_load_all(KUBERAY.read_text()) if d["kind"] != "RayCluster"]
    cluster = next(d for d in yaml.safe_load_all(KUBERAY.read_text()) if d["kind"] == "RayCluster")
    for group in (cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]):
        name = group.get("groupName", "head")
        documents.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **group["template"]})
    path = tmp_path / "manifest.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    command = [f"{TOOLS}/kubernetes-validate", "--strict", "-k", "1.33", str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    assert len(documents) == 4

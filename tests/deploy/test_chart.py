"""The Helm chart: what Helm makes of it is what Kubernetes takes, and its commands are what this version takes.

`make test-deploy` has Helm and Kubernetes' schemas; without them only its values are looked at.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from fakes.served import ROOT
from gateway.cli import node, serve
from gateway.cli.parser import Parser

CHART = ROOT / "deploy/helm/hocket"
TOOLS = os.environ.get("HOCKET_TEST_DEPLOY_TOOLS", "")
needs_helm = pytest.mark.skipif(not TOOLS, reason="HOCKET_TEST_DEPLOY_TOOLS: make test-deploy")
NEEDED = {"image.repository": "registry.example/hocket", "gateway.apiKeySecret": "keys"}
SCHEMAS = ("1.27", "1.33", "1.37")
CUSTOM = {"ScaledObject", "ServiceMonitor"}  # whose schemas are their operators'
VARIANTS: dict[str, dict[str, object]] = {
    "plain": {},
    "keda": {"autoscaling.kind": "keda", "serviceMonitor.enabled": "true"},
    "hpa": {"autoscaling.kind": "hpa", "gateway.count": 3, "gateway.persistence.enabled": "false"},
    "gpu": {
        "node.resources.limits.nvidia\\.com/gpu": 2,
        "node.shmSize": "8Gi",
        "node.runtimeClassName": "nvidia",
        "node.args[0]": "--max-model-len=4096",
        "volumes[0].name": "models",
        "volumes[0].persistentVolumeClaim.claimName": "models",
        "volumeMounts[0].name": "models",
        "volumeMounts[0].mountPath": "/models",
    },
    "database": {"gateway.databaseSecret": "pg", "networkPolicy": "false", "node.replicas": 0},
}


def helm(*arguments: str, values: dict[str, object]) -> subprocess.CompletedProcess[str]:
    sets = [f"--set={key}={value}" for key, value in values.items()]
    command = [f"{TOOLS}/helm", *arguments, *sets]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def rendered(values: dict[str, object]) -> list[dict[str, Any]]:
    said = helm("template", "chat", str(CHART), "--namespace=llm", values=NEEDED | values)
    assert said.returncode == 0, said.stderr
    return [document for document in yaml.safe_load_all(said.stdout) if document]


def by_kind(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [document for document in documents if document["kind"] == kind]


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_helm_finds_nothing_wrong(variant: str) -> None:
    said = helm("lint", "--strict", str(CHART), values=NEEDED | VARIANTS[variant])
    assert said.returncode == 0, said.stdout


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("version", SCHEMAS)
def test_kubernetes_takes_what_comes_out(variant: str, version: str, tmp_path: Path) -> None:
    documents = [document for document in rendered(VARIANTS[variant]) if document["kind"] not in CUSTOM]
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    command = [f"{TOOLS}/kubernetes-validate", "--strict", "-k", version, str(path)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


@needs_helm
@pytest.mark.parametrize("variant", VARIANTS)
def test_its_commands_are_those_of_this_version(variant: str) -> None:
    commands = {"serve": serve, "node": node}
    documents = rendered(VARIANTS[variant])
    workloads = by_kind(documents, "Deployment") + by_kind(documents, "StatefulSet")
    assert len(workloads) >= 2
    for workload in workloads:
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        name, *arguments = container["args"]
        parser = Parser(prog=name)
        (serve.add_options if name == "serve" else commands[name].add_arguments)(parser)
        found = vars(parser.parse_args(arguments))
        assert found["model"] == "demo"


@needs_helm
def test_what_refers_to_something_refers_to_what_is_there() -> None:
    for values in VARIANTS.values():
        documents = rendered(values)
        pods = [d["spec"]["template"] for d in by_kind(documents, "Deployment") + by_kind(documents, "StatefulSet")]
        for selector in selectors(documents):
            assert any(selector.items() <= pod["metadata"]["labels"].items() for pod in pods), selector
        claims = {claim["metadata"]["name"] for claim in by_kind(documents, "PersistentVolumeClaim")}
        claims.add("models")  # the operator's
        for pod in pods:
            volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
            (container,) = pod["spec"]["containers"]
            assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
            asked = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes.values()
                     if "persistentVolumeClaim" in volume}  # fmt: skip
            assert asked <= claims


def selectors(documents: list[dict[str, Any]]) -> Iterator[dict[str, str]]:
    for document in documents:
        spec = document["spec"]
        if document["kind"] == "Service":
            yield spec["selector"]
        elif document["kind"] in ("Deployment", "StatefulSet", "PodDisruptionBudget"):
            yield spec["selector"]["matchLabels"]
        elif document["kind"] == "NetworkPolicy":
            yield spec["podSelector"]["matchLabels"]


@needs_helm
@pytest.mark.parametrize("count", [1, 3])
def test_nodes_dial_every_gateway_by_one_name_however_many_there_are(count: int) -> None:
    documents = rendered({"gateway.count": count})
    (nodes,) = by_kind(documents, "StatefulSet")
    (container,) = nodes["spec"]["template"]["spec"]["containers"]
    (argument,) = [argument for argument in container["args"] if argument.startswith("--gateways=")]
    host, port = argument.removeprefix("--gateways=").split(":")
    services = {service["metadata"]["name"]: service["spec"] for service in by_kind(documents, "Service")}
    assert services[host]["clusterIP"] == "None"  # the name has the pods' own addresses
    assert services[host]["publishNotReadyAddresses"]
    (entry,) = services[host]["ports"]
    assert entry["port"] == int(port)
    gateways = by_kind(documents, "Deployment")
    assert len(gateways) == count
    for gateway in gateways:
        pod = gateway["spec"]["template"]
        assert services[host]["selector"].items() <= pod["metadata"]["labels"].items()
        (serving,) = pod["spec"]["containers"]
        assert {"name": entry["targetPort"], "containerPort": int(port)} in serving["ports"]
    assert not services[host]["selector"].items() <= nodes["spec"]["template"]["metadata"]["labels"].items()


@needs_helm
def test_pods_run_without_privileges_and_each_has_the_key_of_its_role_only() -> None:
    documents = rendered({})
    for kind, role in (("Deployment", "gateway"), ("StatefulSet", "node")):
        (workload,) = by_kind(documents, kind)
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert not container["securityContext"]["allowPrivilegeEscalation"]
        (secret,) = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        assert [item["key"] for item in secret["items"]] == ["ca.pem", f"{role}.pem"]


@needs_helm
def test_a_pod_has_longer_to_end_than_its_node_to_drain() -> None:
    for seconds in (0, 60, 600):
        (nodes,) = by_kind(rendered({"node.drainSeconds": seconds}), "StatefulSet")
        pod = nodes["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert f"--drain-timeout-ms={seconds * 1000}" in container["args"]
        assert pod["terminationGracePeriodSeconds"] > seconds


@needs_helm
def test_with_an_autoscaler_the_number_of_nodes_is_its_business() -> None:
    for kind, made in (("keda", "ScaledObject"), ("hpa", "HorizontalPodAutoscaler")):
        documents = rendered({"autoscaling.kind": kind})
        (nodes,) = by_kind(documents, "StatefulSet")
        (scaler,) = by_kind(documents, made)
        assert "replicas" not in nodes["spec"]
        assert scaler["spec"]["scaleTargetRef"]["name"] == nodes["metadata"]["name"]
        assert "hocket_desired_nodes" in str(scaler["spec"])
        if kind == "keda":  # each gateway counts what comes to all of them
            (trigger,) = scaler["spec"]["triggers"]
            assert trigger["metadata"]["query"].startswith("max(hocket_desired_nodes{")
            assert trigger["metadata"]["ignoreNullValues"] == "false"


@needs_helm
@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"image.repository": ""}, "image.repository: the image built from deploy/containers"),
        ({"gateway.apiKeySecret": ""}, "gateway.apiKeySecret: a secret whose key"),
        ({"gateway.replicas": 3}, "replicas"),
        ({"gateway.count": 0}, "count"),
        ({"gateway.count": 2, "gateway.databaseSecret": "pg"}, "databaseSecret is for one gateway"),
        ({"autoscaling.kind": "magic"}, "kind"),
        ({"autoscaling.kind": "hpa", "autoscaling.minReplicas": 9}, "minReplicas must not be above"),
        ({"node.args[0]": "max-model-len"}, "args"),
    ],
)
def test_wrong_values_are_refused_and_named(values: dict[str, object], said: str) -> None:
    answered = helm("template", "chat", str(CHART), values=NEEDED | values)
    assert answered.returncode != 0
    assert said in answered.stderr


def test_values_and_their_schema_name_the_same() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = yaml.safe_load((CHART / "values.schema.json").read_text())
    assert names(values) == schema_names(schema) - {"global"}


def names(values: dict[str, Any], above: str = "") -> set[str]:
    found = set()
    for key, value in values.items():
        found.add(f"{above}{key}")
        if isinstance(value, dict) and key in ("image", "gateway", "node", "persistence", "service", "autoscaling",
                                               "serviceMonitor"):  # fmt: skip
            found |= names(value, f"{above}{key}.")
    return found


def schema_names(schema: dict[str, Any], above: str = "") -> set[str]:
    found = set()
    for key, value in schema.get("properties", {}).items():
        found |= {f"{above}{key}"} | schema_names(value, f"{above}{key}.")
    return found

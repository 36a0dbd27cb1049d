"""`fleet.toml`: what `hocket fleet up` is to keep running, read and checked whole before anything is started."""

from __future__ import annotations

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec

from gateway.cluster.errors import FleetFileError
from gateway.config.config import check_exposure
from schedcore.api.frame_socket import NETWORK_SCHEME, network_address
from schedcore.api.model_path import DEMO

MAX_NODES = 1000
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?")
_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGT]?)")
_TABLES = ("resources", "node", "scaling")
_FIXED = {  # in [node]: who says them, for they differ between nodes or have a place of their own
    "name": "nodes are called NAME-1, NAME-2, ... after `name`",
    "gateways": "`gateways` stands above the first table",
    "model": "`model` stands above the first table",
    "cluster-dir": "`cluster-dir` stands above the first table",
    "insecure-network": "`insecure-network` stands above the first table",
    "run-dir": "`run-dir` stands above the first table",
}


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """That each node has to itself. All on one machine: an engine over several machines is not started by this."""

    gpus: float = 0  # whole ones, or a part of one
    cpus: float = 0
    memory: str = ""  # "32G"
    custom: dict[str, float] = {}  # what machines were given when they joined, by name

    def __post_init__(self) -> None:
        if self.gpus < 0 or (self.gpus > 1 and not float(self.gpus).is_integer()):
            raise ValueError("gpus must be a whole number, or a part of one")
        for name, number in {"cpus": self.cpus, **self.custom}.items():
            if not 0 <= number < math.inf:
                raise ValueError(f"{name} must not be negative")
        if self.memory and _SIZE.fullmatch(self.memory) is None:
            raise ValueError(f"memory must be a size such as 512M or 32G, not {self.memory!r}")

    @property
    def memory_bytes(self) -> int:
        found = _SIZE.fullmatch(self.memory)
        return 0 if found is None else int(float(found[1]) * _UNITS[found[2]])


class Scaling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """The number of nodes follows the greatest `hocket_desired_nodes` that a gateway says."""

    metrics_url: str | tuple[str, ...]  # http://gw1:8000/metrics; of every gateway, for the one that says it may die
    min_nodes: int = 1
    max_nodes: int = 8
    down_after_seconds: float = 600.0  # of wanting fewer

    def __post_init__(self) -> None:
        if not self.metrics_urls or not all(url.startswith(("http://", "https://")) for url in self.metrics_urls):
            raise ValueError("metrics-url must be a URL such as http://gw1:8000/metrics")
        if not 1 <= self.min_nodes <= self.max_nodes <= MAX_NODES:
            raise ValueError(f"min-nodes and max-nodes must be 1 to {MAX_NODES}, in this order")
        if not 0 <= self.down_after_seconds < math.inf:
            raise ValueError("down-after-seconds must not be negative")

    @property
    def metrics_urls(self) -> tuple[str, ...]:
        return (self.metrics_url,) if isinstance(self.metrics_url, str) else self.metrics_url


class FleetFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    gateways: tuple[str, ...]  # HOST:PORT, each at its --fleet-listen
    name: str = "hocket"
    nodes: int = 1
    model: str = DEMO  # as every machine sees it
    cluster_dir: str | None = None  # the cluster's certificates, on every machine
    insecure_network: bool = False
    run_dir: str = "/var/lib/hocket"  # on every machine; a folder per machine and node is made in it
    resources: Resources = Resources()
    node: dict[str, bool | int | float | str | list[str]] = {}  # further flags of `hocket node`
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise ValueError("name must be letters a to z, digits and dashes, 42 at most")
        if not 1 <= self.nodes <= MAX_NODES:
            raise ValueError(f"nodes must be 1 to {MAX_NODES}")
        if not self.gateways:
            raise ValueError("gateways must name at least one, such as gw1:7000")
        if not self.run_dir.startswith("/"):
            raise ValueError("run-dir must be a path from the root: nodes are started wherever there is room")
        hosts = {network_address(NETWORK_SCHEME + gateway)[0] for gateway in self.gateways}
        check_exposure(hosts, self.cluster_dir, is_insecure=self.insecure_network)
        for key in self.node:
            if (why := _FIXED.get(key)) is not None:
                raise ValueError(f"[node] must not have {key}: {why}")

    def node_arguments(self) -> list[str]:
        """Of `hocket node`, but for --name and --run-dir."""
        arguments = [f"--gateways={','.join(self.gateways)}", f"--model={self.model}"]
        if self.cluster_dir is not None:
            arguments.append(f"--cluster-dir={self.cluster_dir}")
        if self.insecure_network:
            arguments.append("--insecure-network")
        for key, value in self.node.items():
            if isinstance(value, bool):
                arguments.append(f"--{key}" if value else f"--no-{key}")
            else:
                arguments += [f"--{key}={item}" for item in (value if isinstance(value, list) else [value])]
        return arguments


def read_fleet_file(path: Path) -> FleetFile:
    """Keys may have dashes or underscores. Raises FleetFileError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FleetFileError(f"{path}: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:
        raise FleetFileError(f"{path} cannot be read as TOML: {error}") from None
    try:
        return msgspec.convert(_dashed(content), FleetFile)
    except msgspec.ValidationError as error:
        raise FleetFileError(f"{path}: {_in_words(str(error))}") from None


def _dashed(table: dict[str, Any]) -> dict[str, Any]:
    """But for what operators named themselves."""
    return {
        key.replace("_", "-"): _dashed(value) if isinstance(value, dict) and key != "custom" else value
        for key, value in table.items()
    }


def _in_words(error: str) -> str:
    """msgspec's, with the place as it is written in the file: [scaling] max-nodes."""
    found = _PLACE.search(error)
    place = "" if found is None else found[1].removesuffix("...")
    table, _, key = place.rpartition(".")
    where = f"[{table}] {key}" if table else f"[{place}]" if place in _TABLES else place
    text = _PLACE.sub("", error).replace("Object contains unknown field", "there is no key").replace("Object m", "m")
    text = text[:1].lower() + text[1:]
    return f"{where}: {text}" if where else text

"""What a node is told, held to what is safe."""

from __future__ import annotations

import pytest

from gateway.config.node_config import NodeConfig
from gateway.node.node_engine import engine_command


def node(**fields: object) -> NodeConfig:
    return NodeConfig(gateways=("127.0.0.1:7000",), name="a", **fields)  # type: ignore[arg-type]


def test_nixl_beyond_this_machine_is_the_operators_word() -> None:
    assert node().block_transport == "tcp"
    assert node(block_transport="nixl").block_transport == "nixl"
    beyond = {"listen": "0.0.0.0:7100", "cluster_dir": "cluster", "block_transport": "nixl"}
    with pytest.raises(ValueError, match="needs insecure_network"):
        node(**beyond)
    assert node(**beyond, insecure_network=True).block_transport == "nixl"
    with pytest.raises(ValueError, match="block_transport"):
        node(block_transport="rdma")


def test_an_engine_is_told_of_its_transport_only_where_it_is_another() -> None:
    """What was started as it would be now is adopted."""
    before = engine_command("python", "worker", "tcp://h:1", "tcp://h:2", None)
    assert engine_command("python", "worker", "tcp://h:1", "tcp://h:2", None, "tcp") == before
    told = engine_command("python", "worker", "tcp://h:1", "tcp://h:2", None, "nixl")
    assert told == [*before, "--block-transport", "nixl"]

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.cli.clusters.on_ray import checked_fleet_file
from gateway.cluster.errors import FleetFileError
from gateway.cluster.fleet_file import read_fleet_file

GOOD = """
name = "chat"
model = "/models/qwen3-8b"
nodes = 3
gateways = ["gw1:7000", "gw2:7000"]
cluster-dir = "/etc/hocket"

[resources]
gpus = 2
memory = "32G"
custom = { big_disk = 1 }

[node]
listen = "0.0.0.0:7100"
max_num_seqs = 64

[scaling]
metrics-url = "http://gw1:8000/metrics"
max-nodes = 5
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "fleet.toml"
    path.write_text(text)
    return path


def test_what_a_node_is_started_with_is_what_the_file_says(tmp_path: Path) -> None:
    file = checked_fleet_file(written(tmp_path, GOOD))
    assert file.node_arguments() == [
        "--gateways=gw1:7000,gw2:7000",
        "--model=/models/qwen3-8b",
        "--cluster-dir=/etc/hocket",
        "--listen=0.0.0.0:7100",
        "--max-num-seqs=64",
    ]
    assert file.resources.memory_bytes == 32 << 30
    assert file.resources.custom == {"big_disk": 1}
    assert file.scaling is not None
    assert (file.nodes, file.scaling.min_nodes, file.scaling.max_nodes) == (3, 1, 5)


def test_the_number_of_nodes_follows_every_gateway_that_is_named(tmp_path: Path) -> None:
    urls = ("http://gw1:8000/metrics", "https://gw2/metrics")
    for written_so, meant in ((f'"{urls[0]}"', urls[:1]), (f'["{urls[0]}", "{urls[1]}"]', urls)):
        file = read_fleet_file(written(tmp_path, GOOD.replace('"http://gw1:8000/metrics"', written_so)))
        assert file.scaling is not None
        assert file.scaling.metrics_urls == meant


def test_underscores_are_dashes_but_in_names_of_the_operators_own(tmp_path: Path) -> None:
    file = read_fleet_file(
        written(tmp_path, GOOD.replace("cluster-dir", "cluster_dir").replace("max-nodes", "max_nodes"))
    )
    assert file == read_fleet_file(written(tmp_path, GOOD))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("nodes = 3", "nodes = 0", "nodes must be 1 to 1000"),
        ("nodes = 3", 'nodes = "3"', "nodes: expected `int`, got `str`"),
        ("nodes = 3", "node_count = 3", "there is no key `node-count`"),
        ("nodes = 3", "nodes = ", "cannot be read as TOML"),
        ('"chat"', '"Chat room"', "name must be letters a to z"),
        ('["gw1:7000", "gw2:7000"]', "[]", "gateways must name at least one"),
        ('["gw1:7000", "gw2:7000"]', '["gw1"]', "gw1"),
        ('gateways = ["gw1:7000", "gw2:7000"]', "", "missing required field `gateways`"),
        ('cluster-dir = "/etc/hocket"', "", "certificates"),
        ("gpus = 2", "gpus = 1.5", "[resources]: gpus must be a whole number"),
        ("gpus = 2", "gpu = 2", "[resources]: there is no key `gpu`"),
        ('"32G"', '"32 GB"', "memory must be a size"),
        ("max-nodes = 5", "min-nodes = 6\nmax-nodes = 5", "min-nodes and max-nodes"),
        ("http://gw1:8000/metrics", "gw1:8000", "metrics-url must be a URL"),
        ('"http://gw1:8000/metrics"', "[]", "metrics-url must be a URL"),
        ('"http://gw1:8000/metrics"', '["http://gw1:8000/metrics", "gw2"]', "metrics-url must be a URL"),
        ("max-nodes = 5", "max-nodes = 5.5", "[scaling] max-nodes"),
        ("[node]", '[node]\nname = "a"', "[node] must not have name"),
        ("[node]", '[node]\nrun_dir = "/a"', "[node] must not have run-dir"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(before: str, after: str, said: str, tmp_path: Path) -> None:
    assert before in GOOD
    path = written(tmp_path, GOOD.replace(before, after))
    with pytest.raises(FleetFileError) as error:
        read_fleet_file(path)
    assert str(error.value).startswith(str(path))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_flag_that_a_node_does_not_have_is_named_with_what_is_near(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        checked_fleet_file(written(tmp_path, GOOD.replace("max_num_seqs", "max_nums_seqs")))
    assert "there is no option --max-nums-seqs; is it --max-num-seqs?" in capsys.readouterr().err
    with pytest.raises(FleetFileError, match="drain_timeout_ms must not be negative"):
        checked_fleet_file(written(tmp_path, GOOD.replace("max_num_seqs = 64", "drain-timeout-ms = -1")))


def test_no_file_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(FleetFileError, match="no such file"):
        read_fleet_file(tmp_path / "none.toml")

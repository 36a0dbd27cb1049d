"""What the comparisons over vLLM say of their measurements, and whom they start."""

from __future__ import annotations

import argparse
import json
import shlex
from pathlib import Path

import pytest

from bench.lib.vllm_contestants import add_vllm_options, vllm_contestants
from bench.run.vllm.goodput import rate_held


@pytest.mark.parametrize(
    ("measured", "held"),
    [
        ([(2.0, 1.0), (4.0, 0.8)], 3.0),
        ([(4.0, 0.8), (2.0, 1.0), (8.0, 0.1)], 3.0),
        ([(2.0, 0.95), (3.0, 0.92)], 3.0),
        ([(2.0, 0.5), (3.0, 0.95)], 0.0),
    ],
)
def test_the_rate_is_where_the_share_falls_through_the_level(measured: list[tuple[float, float]], held: float) -> None:
    assert rate_held(measured, 0.9) == pytest.approx(held)


def test_every_server_is_told_its_targets_as_it_takes_them() -> None:
    parser = argparse.ArgumentParser()
    add_vllm_options(parser, ["stock", "plugin", "vllm", "own"])
    arguments = parser.parse_args(["--vllm-python", "/opt/vllm/bin/python"])
    arguments.ttft_ms, arguments.itl_ms, arguments.pace = 500.0, 100.0, 0.0
    stock, plugin, steered, own = vllm_contestants(arguments, Path("/data"))
    said = shlex.split(plugin.command.format(model="m", port=1))
    told = json.loads(said[said.index("--additional-config") + 1])["hocket"]
    assert told == {"ttft_target_ms": 400.0, "itl_target_ms": 80.0, "max_offline_step_ms": 80.0}
    assert "additional-config" not in stock.command
    for ours in (steered, own):
        assert "--ttft-target-ms 400" in ours.command
        assert (ours.takes_targets, ours.job_fields) == (True, {"service_tier": "flex"})
    arguments.pace = 1.2
    assert "--ttft-target-ms" not in vllm_contestants(arguments, Path("/data"))[2].command

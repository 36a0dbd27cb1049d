"""`hocket simulate --cluster` and `hocket plan --routing`, from their command lines to what they print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.cli.main import main

MOONCAKE = str(Path(__file__).parents[2] / "data" / "mooncake_conversation_cut.csv")
TRACE = ("--trace", MOONCAKE, "--jitter-s", "3", "--ttft-ms", "2000")


def test_routings_are_compared_on_the_same_arrivals(capsys: pytest.CaptureFixture[str]) -> None:
    routings = ("--routing", "advised", "--routing", "sticky", "--routing", "round_robin")
    assert main(["simulate", *TRACE, "--cluster", "4", *routings, "--host-cache", "8G", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["advised", "sticky", "round_robin"]
    assert len({report["num_requests"] for report in found.values()}) == 1
    assert found["sticky"]["moved_ratio"] == 0.0


def test_a_table_says_that_it_is_simulated_by_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["simulate", "--lengths", "400:40", "--arrivals", "poisson:20", "--cluster", "2", "--gateways", "2"]) == 0
    )
    text = " ".join(capsys.readouterr().out.split())
    assert "Simulated, not measured: llama-3-8b" in text
    assert "engines by rate" in text
    assert "2 nodes, 1000 requests" in text


def test_a_plan_says_how_many_nodes_and_what_it_tried(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["plan", *TRACE, "--gpu", "a100", "--num-gpus", "1", "--memory", "80G", "--routing", "cost"]
    assert main([*arguments, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["is_simulated"]
    assert plan["least"]["is_enough"]
    fewer = [trial for trial in plan["trials"] if trial["num_nodes"] < plan["least"]["num_nodes"]]
    assert not any(trial["is_enough"] for trial in fewer)
    assert main(arguments) == 0
    assert "least" in capsys.readouterr().out
    assert main([*arguments, "--attainment", "1.0", "--ttft-ms", "1", "--max-gpus", "2"]) == 1
    assert "raise --max-gpus" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("simulate", *TRACE, "--cluster", "2", "--policy", "fcfs"), "modelled by rate"),
        (("simulate", *TRACE, "--arrivals", "poisson:1", "--cluster", "2"), "times of their own"),
        (("plan", *TRACE, "--itl-ms", "50", "--routing", "cost"), "no other target"),
        (("plan", *TRACE, "--offline", MOONCAKE, "--routing", "cost"), "without --offline"),
    ],
)
def test_what_a_fleet_by_rate_does_not_know_is_said(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert main(list(arguments)) == 1
    assert said in capsys.readouterr().err
